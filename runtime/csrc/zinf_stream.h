// Programs of transfers and updates, carried out without a call back for each step.
//
// The conventions are those of zinf.h.  A program is a list of steps over requests and updates
// that are all known before it begins.  It decides nothing: steps run one after another, in the
// calling thread, and what overlaps is what the order of the steps lets overlap.
#ifndef ZINF_STREAM_H
#define ZINF_STREAM_H

#include "zinf.h"
#include "zinf_optim.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ZINF_STREAM_START = 0,   // queue request `index`
    ZINF_STREAM_AWAIT = 1,   // block until request `index` is over
    ZINF_STREAM_UPDATE = 2,  // run update `index`
    ZINF_STREAM_VACATE = 3,  // give the memory of vacancy `index` back to the system
    ZINF_STREAM_RETURN = 4,  // let the caller do something; the next run goes on after it
};

typedef struct zinf_stream_step {
    int32_t kind;
    uint32_t index;
} zinf_stream_step;

// A request for `channel` of the engine: spans `first_span` and the `num_spans - 1` after it.
typedef struct zinf_stream_request {
    int32_t channel;
    uint32_t num_spans;
    uint64_t first_span;
} zinf_stream_request;

// A call of the optimizers: tensors `first_tensor` and the `num_tensors - 1` after it.
typedef struct zinf_stream_update {
    const zinf_optim_call* call;
    uint64_t first_tensor;
    int64_t num_tensors;
} zinf_stream_update;

// Whole pages of memory that is mapped privately and belongs to no file.
typedef struct zinf_stream_vacancy {
    uint64_t address;
    uint64_t nbytes;
} zinf_stream_vacancy;

// All arrays stay the caller's, and unchanged, until the program is destroyed.  Every request
// is started at most once, and awaited only after that.
typedef struct zinf_stream_program {
    const zinf_stream_step* steps;
    const zinf_stream_request* requests;
    const zinf_io_span* spans;
    const zinf_stream_update* updates;
    const zinf_optim_tensor* tensors;
    const zinf_stream_vacancy* vacancies;
    const zinf_io_file* files;  // of the requests that are no copies of memory
    uint64_t num_steps;
    uint64_t num_requests;
    uint64_t num_spans;
    uint64_t num_updates;
    uint64_t num_tensors;
    uint64_t num_vacancies;
    uint64_t num_files;
} zinf_stream_program;

// How far a program has come.
typedef struct zinf_stream_progress {
    uint64_t num_done;         // steps that are over
    uint64_t failed_request;   // if the result has an error
    zinf_io_result result;     // of the request that failed first
    uint64_t moved_bytes[ZINF_IO_CHANNELS];
    uint64_t waited_ns[ZINF_IO_CHANNELS];  // for which steps were blocked
} zinf_stream_progress;

typedef struct zinf_stream zinf_stream;

// Check a program and get ready to run it on `io` and `pool`, NULL for the calling thread alone.
// Fails with -EINVAL for a program that makes no sense.
ZINF_API int32_t zinf_stream_create(zinf_io* io, zinf_pool* pool,
                                    const zinf_stream_program* program, zinf_stream** stream);

// Let a program that is not running go on with more: `program` begins with the steps, requests and
// updates that it had, and has more of them behind.  Fails with -EINVAL, and changes nothing, for one
// that makes no sense or is shorter.
ZINF_API int32_t zinf_stream_extend(zinf_stream* stream, const zinf_stream_program* program);

// Go on for about so many milliseconds.  Returns 0 when all steps are over, 1 after a RETURN
// step, -ETIMEDOUT when it was interrupted by the time, else the error of the step at hand,
// negative: that of a request is in the progress.  After an error it may not be run again.
ZINF_API int32_t zinf_stream_run(zinf_stream* stream, int64_t milliseconds,
                                 zinf_stream_progress* progress);

// Start no further block of what is under way, wait for the rest, and free the program.
// `progress`, unless NULL, receives how many bytes have moved in the end.
ZINF_API void zinf_stream_destroy(zinf_stream* stream, zinf_stream_progress* progress);

#ifdef __cplusplus
}
#endif

#endif
