// What the optimizers' kernels are called through, one set for each instruction set.
#pragma once

#include "isa.h"
#include "zinf_optim.h"

namespace zinf::optim {

struct Kernels {
    void (*update)(const zinf_optim_call &, const zinf_optim_tensor &, int64_t begin, int64_t end);
    double (*square_sum)(int32_t type, const void *grad, int64_t begin, int64_t end);
    bool (*all_finite)(int32_t type, const void *grad, int64_t begin, int64_t end);
};

}  // namespace zinf::optim

ZINF_DECLARE_PER_ISA(extern const optim::Kernels optim_kernels)
