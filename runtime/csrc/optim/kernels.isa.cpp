// The optimizers' kernels, compiled for each instruction set.
#include "optim/kernels.h"

#include <stdint.h>

namespace zinf::ZINF_ISA {
namespace {

#if defined(__FMA__) || defined(__aarch64__)
constexpr bool always_fma = true;
#else
constexpr bool always_fma = false;
#endif

#include "optim/core.h"

#include "optim/convert.h"

#include "optim/random.h"

#include "optim/quant.h"

#include "optim/tiles.h"

}  // namespace

extern const optim::Kernels optim_kernels{update_range, square_sum, all_finite};

}  // namespace zinf::ZINF_ISA
