// Fused optimizers: one pass over memory for the whole update of many tensors.
//
// The conventions are those of zinf.h.  The arithmetic is that of torch's single-tensor loops or
// of its fused kernels: the notes in optim/core.h say which operations round.  Every result is
// the same whatever the instruction set, the number of threads and the cuts into pieces, because
// elements are independent of each other.  Nothing here keeps memory beyond a call.
#ifndef ZINF_OPTIM_H
#define ZINF_OPTIM_H

#include "zinf.h"

#ifdef __cplusplus
extern "C" {
#endif

// Types of elements.
enum {
    ZINF_TYPE_NONE = 0,  // there is no such tensor
    ZINF_TYPE_FP32 = 1,
    ZINF_TYPE_BF16 = 2,
    ZINF_TYPE_FP16 = 3,
    ZINF_TYPE_Q8 = 4,    // states only: see optim/quant.h
};

enum {
    ZINF_OPTIM_ADAM = 0,     // states: exp_avg, exp_avg_sq, with amsgrad max_exp_avg_sq
    ZINF_OPTIM_SGD = 1,      // states: with momentum momentum_buffer
    ZINF_OPTIM_ADAGRAD = 2,  // states: sum
    ZINF_OPTIM_RMSPROP = 3,  // states: square_avg, if centered grad_avg, momentum_buffer
    ZINF_OPTIM_LION = 4,     // states: exp_avg
};

enum {
    ZINF_OPTIM_AMSGRAD = 1,
    ZINF_OPTIM_MAXIMIZE = 2,
    ZINF_OPTIM_NESTEROV = 4,
    ZINF_OPTIM_CENTERED = 8,
    ZINF_OPTIM_PENALTY = 16,       // weight decay is added to the gradient
    ZINF_OPTIM_DECAY = 32,         // weight decay shrinks the parameter
    ZINF_OPTIM_FIRST = 64,         // SGD: the momentum buffer is to be made from the gradient
    ZINF_OPTIM_MOMENTUM = 128,     // SGD and RMSprop: there is a momentum buffer
    ZINF_OPTIM_CHECK_FINITE = 256, // change nothing if any gradient is not finite
    ZINF_OPTIM_STOCHASTIC = 512,   // round what is stored in bf16 or 8 bits stochastically
    ZINF_OPTIM_ROUND_TWICE = 1024, // a product is rounded before it is added, as without FMA
    ZINF_OPTIM_FOLLOW = 2048,      // the parameter first takes what `out` has where that is not
                                   // the parameter, rounded
};

#define ZINF_OPTIM_MAX_STATES 3
#define ZINF_OPTIM_BLOCK 256  // elements of an 8-bit state that share a scale

// What one tensor brings along.  Pointers are to the first element here; a piece of a tensor
// says with `first` where it begins, for 8-bit states and stochastic rounding at a whole block.
typedef struct zinf_optim_tensor {
    void* param;
    void* grad;  // written only if it is divided and in fp32
    void* state[ZINF_OPTIM_MAX_STATES];
    float* scale[ZINF_OPTIM_MAX_STATES];  // of 8-bit states: one for each block
    void* out;              // copy of the parameter in a shorter type
    int64_t numel;
    int64_t first;          // index of the first element within the whole tensor
    int64_t whole_vectors;  // elements before those that torch's fused kernels compute in their
                            // scalar loop; numel where there are none
    uint32_t stream;        // tells tensors apart for the random numbers
    float step_size;        // Adam: lr / (1 - beta1^t); Adagrad: the decayed lr; else lr
    float denom_divisor;    // Adam: sqrt(1 - beta2^t)
    uint32_t reserved;      // 0
} zinf_optim_tensor;

// What all tensors of a call share.
typedef struct zinf_optim_call {
    int32_t kind;
    int32_t flags;
    int32_t isa;         // negative for the best there is
    int32_t param_type;  // FP32, BF16 or FP16
    int32_t grad_type;   // FP32, BF16 or FP16
    int32_t state_type[ZINF_OPTIM_MAX_STATES];  // NONE, FP32, BF16 or Q8
    int32_t out_type;    // NONE, BF16 or FP16
    float grad_divisor;  // gradients are divided by this; those in fp32 are written back
    float grad_factor;   // gradients are multiplied by this,
    float clip_factor;   // then by this
    float weight_decay;  // PENALTY
    float decay;         // DECAY: 1 - lr * weight_decay
    float weight1;       // of the gradient: Adam, RMSprop: in the first moment; Lion: in the
                         // update; SGD: in the momentum
    float beta1;         // Lion: weight of the momentum in the update
    float beta2;         // weight of the old second moment (Adam, RMSprop), momentum (Lion)
    float weight2;       // weight of the gradient beside beta2
    float momentum;      // SGD, RMSprop
    float eps;
    uint64_t seed;       // of the random numbers
    uint32_t step;       // of the random numbers
    uint32_t reserved;   // 0
    // Where square roots come from, with its last argument; NULL for the processor.  MKL's
    // vmsSqrt has this form.
    void (*roots)(int32_t num, const float* values, float* roots, int64_t mode);
    int64_t roots_mode;
    // Set how many threads that function may use for the calling thread, and return how many it
    // might before, 0 for its default; NULL where it uses none.  MKL_Set_Num_Threads_Local has
    // this form.
    int32_t (*set_roots_threads)(int32_t num);
} zinf_optim_call;

// Update all tensors on the threads of `pool`, NULL for the calling one alone.  Return 0; 1, with
// nothing changed, if CHECK_FINITE finds a gradient that is not finite; -EINVAL, with nothing
// changed, if the arguments make no sense.
ZINF_API int32_t zinf_optim_step(const zinf_optim_call* call, const zinf_optim_tensor* tensors,
                                 int64_t num_tensors, zinf_pool* pool);

// Put the sum of the squares of each gradient into `sums`, added up in an order that depends on
// its number of elements alone.  Of `call` isa and grad_type count.  The sum of what is not
// finite is not finite.
ZINF_API int32_t zinf_optim_square_sums(const zinf_optim_call* call,
                                        const zinf_optim_tensor* tensors, int64_t num_tensors,
                                        zinf_pool* pool, double* sums);

#ifdef __cplusplus
}
#endif

#endif
