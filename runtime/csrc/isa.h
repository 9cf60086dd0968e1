// Kernels for several instruction sets.
//
// A file named *.isa.cpp is compiled once for each set, with ZINF_ISA defined as the set's name
// and the compiler told to use it.  It puts all it defines into namespace zinf::ZINF_ISA and
// includes no C++ header with code in it: the linker keeps one copy of an inline function for
// the whole library, and must never keep one that was compiled for AVX-512.  At run time
// ZINF_SELECT picks a function by number.
#pragma once

#include "zinf.h"

namespace zinf {

// Whether this machine has the instruction set and the library has kernels for it.
bool isa_supported(int32_t isa);

// Return `isa`, or the best there is for a negative number; -1 if it is not supported.
int32_t isa_resolved(int32_t isa);

}  // namespace zinf

// The function `name` compiled for the set `isa`, which is supported.  Each namespace has to
// declare it: see ZINF_DECLARE_PER_ISA.
#if defined(__x86_64__)
#define ZINF_SELECT(name, isa)                                 \
    ((isa) == ZINF_ISA_AVX512 ? &zinf::avx512::name            \
     : (isa) == ZINF_ISA_AVX2 ? &zinf::avx2::name              \
                              : &zinf::baseline::name)
#define ZINF_DECLARE_PER_ISA(...)             \
    namespace zinf::baseline { __VA_ARGS__; } \
    namespace zinf::avx2 { __VA_ARGS__; }     \
    namespace zinf::avx512 { __VA_ARGS__; }
#else
#define ZINF_SELECT(name, isa) ((void)(isa), &zinf::baseline::name)
#define ZINF_DECLARE_PER_ISA(...) \
    namespace zinf::baseline { __VA_ARGS__; }
#endif
