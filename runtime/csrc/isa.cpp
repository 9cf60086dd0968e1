// Which instruction sets this machine has.
#include "isa.h"

#include <initializer_list>

namespace zinf {

bool isa_supported(int32_t isa) {
    switch (isa) {
        case ZINF_ISA_BASELINE:
            return true;
#if defined(__x86_64__)
        // The compiler's own test also asks the system whether it saves these registers.
        case ZINF_ISA_AVX2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("f16c");
        case ZINF_ISA_AVX512:
            return isa_supported(ZINF_ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vl");
#endif
        default:
            return false;
    }
}

int32_t isa_resolved(int32_t isa) {
    if (isa < 0) return zinf_isa_best();
    return isa_supported(isa) ? isa : -1;
}

}  // namespace zinf

extern "C" {

int32_t zinf_isa_best(void) {
    for (int32_t isa : {ZINF_ISA_AVX512, ZINF_ISA_AVX2})
        if (zinf::isa_supported(isa)) return isa;
    return ZINF_ISA_BASELINE;
}

const char* zinf_isa_name(int32_t isa) {
    switch (isa) {
        case ZINF_ISA_BASELINE:
            return "baseline";
        case ZINF_ISA_AVX2:
            return "avx2";
        case ZINF_ISA_AVX512:
            return "avx512";
        default:
            return nullptr;
    }
}
}
