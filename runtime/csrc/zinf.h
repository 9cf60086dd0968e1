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
#define ZINF_ABI_VERSION 5

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

// ---- checksums --------------------------------------------------------------------------------

// CRC-32C of `nbytes` of data, continuing from `crc`, 0 at first.  `portable` uses no instruction
// made for it: the reference for the fast one.
ZINF_API uint32_t zinf_crc32c(uint32_t crc, const void* data, uint64_t nbytes, int32_t portable);

// The size of what one sum of a table stands for.
#define ZINF_SUM_BYTES 4096

// Sums of the pages from `data` on, one for each ZINF_SUM_BYTES: their CRC-32C, where 0 is
// replaced by 1.  0 means that a page has no known sum.
ZINF_API void zinf_page_sums(const void* data, uint64_t num_pages, uint32_t* sums);

// ---- input and output -------------------------------------------------------------------------

// Four channels, each a queue of requests that start in the order of their submission, except
// that urgent ones go first.  Threads start with the first request of a channel and sleep while
// it has none.  A forked child must not use its parent's channels, nor destroy them.
typedef struct zinf_io zinf_io;

enum {
    ZINF_IO_READ = 0,      // from files to memory
    ZINF_IO_WRITE = 1,     // from memory to files
    ZINF_IO_COPY_IN = 2,   // from memory to memory
    ZINF_IO_COPY_OUT = 3,  // the same, in a queue of its own
    ZINF_IO_CHANNELS = 4,
};

enum {
    ZINF_IO_URING = 1,    // io_uring, one thread for each direction
    ZINF_IO_THREADS = 2,  // pread and pwrite, as many threads as blocks may be under way
};

// How one direction of the files is used.
typedef struct zinf_io_direction {
    uint32_t depth;         // blocks under way at once, 1 to 256
    uint32_t num_buffers;   // buffers for memory that direct I/O cannot reach, 1 to 256
    uint64_t block_bytes;   // the largest block, whole pages, at most 1 GiB
    uint64_t buffer_bytes;  // the size of one buffer, whole pages, at most 1 GiB
} zinf_io_direction;

typedef struct zinf_io_options {
    int32_t engine;
    int32_t buffered;          // whether to go through the page cache always
    int32_t register_buffers;  // whether to lock the buffers in memory if the limits allow
    int32_t reserved;
    zinf_io_direction read;
    zinf_io_direction write;
} zinf_io_options;

// One file, opened twice.  `direct_fd` was opened with O_DIRECT, or is -1.
typedef struct zinf_io_file {
    int32_t fd;
    int32_t direct_fd;
} zinf_io_file;

// `nbytes` between byte `offset` of file number `file` and memory at `address`.  The rooms,
// `nbytes` included, say how many bytes may be touched on either side without harm to other data:
// where there is room for whole pages the last page takes no detour.  When memory is copied,
// `offset` is the address of the source and the rest means nothing.
//
// With `sums` there is one for every page of the file that the span touches, in order.  A write
// stores them.  A read compares: it fails with EBADMSG for a page that has another sum than the
// known one, unless that page is in the page cache, through which somebody may have written; then,
// and where none is known, the sum is stored.  Pages that travel in part have none: a write lets
// their sums be unknown, a read does not look at them.
typedef struct zinf_io_span {
    uint64_t offset;
    uint64_t address;
    uint64_t nbytes;
    uint64_t memory_room;
    uint64_t file_room;
    uint32_t* sums;  // stay the caller's until the request is over; NULL for none
    uint32_t file;
    uint32_t reserved;
} zinf_io_span;

// Spans start in their order, and so share out several files as the caller has cut them.
typedef struct zinf_io_request {
    const zinf_io_file* files;
    const zinf_io_span* spans;
    uint32_t num_files;
    uint32_t num_spans;
} zinf_io_request;

// How a request ended.  `error` is an errno, 0 for success; file, offset (in that file) and
// nbytes then say which block failed first, for EBADMSG which page.
typedef struct zinf_io_result {
    uint64_t ticket;
    uint64_t moved_bytes;
    uint64_t offset;
    uint64_t nbytes;
    uint32_t file;
    int32_t error;
} zinf_io_result;

typedef struct zinf_io_status {
    int32_t engine;      // what is in use: a ring that cannot be made is replaced by threads
    int32_t buffered;    // whether files are read and written through the page cache
    int32_t registered;  // whether buffers are locked in memory
    int32_t num_threads;
    uint64_t buffer_bytes;  // of the buffers that there are now
    uint64_t num_active;    // requests that are not over
    char engine_reason[160];
    char buffered_reason[160];
    char registered_reason[160];
} zinf_io_status;

// One call for a part of a block, for tests that inject faults.
typedef struct zinf_io_call {
    uint64_t serial;  // counts the calls of the engine, from 1
    uint64_t offset;
    uint64_t nbytes;
    int64_t result;  // before the call 0; after it what it returned: bytes, or minus an errno
    int32_t channel;
    int32_t direct;
} zinf_io_call;

// Before the call (`after` 0) it may lower `nbytes`, or set `result` to minus an errno, which
// then replaces the call.  After it, it may change `result`.  It runs in threads of the engine.
typedef void (*zinf_io_fault)(void* context, int32_t after, zinf_io_call* call);

// Whether io_uring can be used: 0, or a negative errno with the reason as text.
ZINF_API int32_t zinf_io_probe_uring(char* reason, uint64_t reason_bytes);

ZINF_API int32_t zinf_io_create(const zinf_io_options* options, zinf_io** io);

// Finish what was submitted, end the threads and free everything.
ZINF_API void zinf_io_destroy(zinf_io* io);

// Accept no more requests; the threads end by themselves once nothing is left.
ZINF_API void zinf_io_retire(zinf_io* io);

// Queue a request.  Memory and descriptors have to stay valid until it is over.  Fails with
// -ESHUTDOWN once the engine has retired, with -EINVAL for a request that makes no sense.
ZINF_API int32_t zinf_io_submit(zinf_io* io, int32_t channel, int32_t urgent,
                                const zinf_io_request* request, uint64_t* ticket);

// Block until the request is over, or for so many milliseconds (negative: for ever).  Returns 0
// when it is over, -ETIMEDOUT when not.
ZINF_API int32_t zinf_io_wait(zinf_io* io, uint64_t ticket, int64_t milliseconds);

// Start no further block of the request, which ends with ECANCELED.  Returns -EALREADY if all
// its blocks have started, -ENOENT if it is over.
ZINF_API int32_t zinf_io_cancel(zinf_io* io, uint64_t ticket);

// Hand over the results of up to `capacity` requests that are over, each once; return how many.
ZINF_API int32_t zinf_io_reap(zinf_io* io, zinf_io_result* results, int32_t capacity);

ZINF_API int32_t zinf_io_get_status(zinf_io* io, zinf_io_status* status);

// Call `fault` around every call from now on; NULL ends that.
ZINF_API void zinf_io_set_fault(zinf_io* io, zinf_io_fault fault, void* context);

#ifdef __cplusplus
}
#endif

#endif
