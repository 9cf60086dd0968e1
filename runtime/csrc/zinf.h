// The public C interface of the native library: plain data and opaque pointers.
//
// A function returns 0, or a negative number: the errno of the call that failed with its sign
// changed.  zinf_strerror() words both.  Nothing here throws, and nothing calls back unless a
// caller gave it a function to call.
#ifndef ZINF_H
#define ZINF_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZINF_API __attribute__((visibility("default")))

// Goes up when a function or structure below changes in a way that callers notice.
#define ZINF_ABI_VERSION 1

// ---- the library ------------------------------------------------------------------------------

// The ABI version that the library was built with.
ZINF_API int32_t zinf_abi_version(void);

// A digest of the sources and flags that the library was built from, as text.
ZINF_API const char* zinf_build_id(void);

// The compiler that built the library, as text.
ZINF_API const char* zinf_compiler(void);

// What a negative return value means, as text that lives for ever in the calling thread until
// its next call of this function.
ZINF_API const char* zinf_strerror(int32_t code);

// ---- instruction sets -------------------------------------------------------------------------

// Kernels are built once for each of these; every machine has the first.
enum {
    ZINF_ISA_BASELINE = 0,  // x86-64 as it began, or aarch64 with NEON
    ZINF_ISA_AVX2 = 1,      // AVX2, FMA, F16C
    ZINF_ISA_AVX512 = 2,    // AVX-512 F, BW, DQ, VL
};

// The best instruction set of this machine that the library has kernels for.
ZINF_API int32_t zinf_isa_best(void);

// The name of an instruction set, NULL if there is none of that number.
ZINF_API const char* zinf_isa_name(int32_t isa);

// ---- the pool of threads ----------------------------------------------------------------------

// Threads that share the chunks of one job at a time.  They sleep between jobs and start with
// the first one.  A process forked from the one that made the pool gets threads of its own.
typedef struct zinf_pool zinf_pool;

typedef struct zinf_pool_options {
    // Threads that work on a job, the calling one included; 0 for as many as the process may
    // run on at once.
    int32_t num_threads;
    // Whether each thread but the calling one is bound to a CPU of its own.
    int32_t pin;
} zinf_pool_options;

// One chunk of a job.  It runs in any thread of the pool and must not throw.
typedef void (*zinf_chunk)(void* context, uint64_t chunk);

ZINF_API int32_t zinf_pool_create(const zinf_pool_options* options, zinf_pool** pool);

// End the threads.  No job may be running.
ZINF_API void zinf_pool_destroy(zinf_pool* pool);

// How many threads work on a job, the calling one included.
ZINF_API int32_t zinf_pool_size(const zinf_pool* pool);

// Run chunks 0 to num_chunks - 1, each exactly once, and return when all are over.  Jobs from
// several threads follow one another; a job started from within a chunk runs in its own thread.
ZINF_API int32_t zinf_pool_run(zinf_pool* pool, uint64_t num_chunks, zinf_chunk chunk,
                               void* context);

#ifdef __cplusplus
}
#endif

#endif
