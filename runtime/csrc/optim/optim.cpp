// The optimizers' side of the C interface: checks, choice of instruction set, and sharing out.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <vector>

#include "isa.h"
#include "optim/kernels.h"
#include "zinf_optim.h"

namespace zinf::optim {
namespace {

// Returns null for an instruction set that this machine does not have.  Only the baseline has
// loops that round twice: who needs them has a CPU, or asked torch for a level, without FMA.
const Kernels* kernels_for(const zinf_optim_call& call) {
    const int32_t isa = isa_resolved(call.isa);
    if (isa < 0) return nullptr;
    const bool twice = (call.flags & ZINF_OPTIM_ROUND_TWICE) != 0;
    return ZINF_SELECT(optim_kernels, twice ? int32_t{ZINF_ISA_BASELINE} : isa);
}

bool is_half(int32_t type) { return type == ZINF_TYPE_BF16 || type == ZINF_TYPE_FP16; }
bool is_float(int32_t type) { return type == ZINF_TYPE_FP32 || is_half(type); }

bool call_makes_sense(const zinf_optim_call& call) {
    bool sensible = call.kind >= ZINF_OPTIM_ADAM && call.kind <= ZINF_OPTIM_LION && is_float(call.param_type) &&
                    is_float(call.grad_type) &&
                    (call.out_type == ZINF_TYPE_NONE || is_half(call.out_type)) &&
                    (!(call.flags & ZINF_OPTIM_FOLLOW) || is_half(call.out_type));
    for (const int32_t type : call.state_type) {
        sensible = sensible && (type == ZINF_TYPE_NONE || type == ZINF_TYPE_FP32 || type == ZINF_TYPE_BF16 ||
                                type == ZINF_TYPE_Q8);
    }
    return sensible;
}

// How many states, from the first on, the update cannot do without.  RMSprop's may have a gap.
bool needs_state(const zinf_optim_call& call, int slot) {
    const auto has = [&](int32_t flag) { return (call.flags & flag) != 0; };
    switch (call.kind) {
    case ZINF_OPTIM_ADAM:
        return slot < 2 || has(ZINF_OPTIM_AMSGRAD);
    case ZINF_OPTIM_SGD:
        return slot == 0 && has(ZINF_OPTIM_MOMENTUM);
    case ZINF_OPTIM_RMSPROP:
        return slot == 0 || has(slot == 1 ? ZINF_OPTIM_CENTERED : ZINF_OPTIM_MOMENTUM);
    default:
        return slot == 0;
    }
}

bool tensor_makes_sense(const zinf_optim_call& call, const zinf_optim_tensor& of) {
    if (of.numel < 0 || of.first < 0 || of.whole_vectors < 0) return false;
    bool in_blocks = (call.flags & ZINF_OPTIM_STOCHASTIC) != 0;
    bool sensible = of.numel == 0 || (of.param != nullptr && of.grad != nullptr &&
                                      (of.out != nullptr) == (call.out_type != ZINF_TYPE_NONE));
    for (int slot = 0; slot < ZINF_OPTIM_MAX_STATES; ++slot) {
        const int32_t type = call.state_type[slot];
        const bool there = of.state[slot] != nullptr;
        sensible = sensible && needs_state(call, slot) == (type != ZINF_TYPE_NONE) &&
                   (of.numel == 0 || there == (type != ZINF_TYPE_NONE)) &&
                   (type != ZINF_TYPE_Q8 || of.numel == 0 || of.scale[slot] != nullptr);
        in_blocks = in_blocks || type == ZINF_TYPE_Q8;
    }
    return sensible && (!in_blocks || of.first % ZINF_OPTIM_BLOCK == 0);
}

// What one thread takes at a time: whole blocks, small enough to share out evenly and large
// enough for taking them to cost nothing.
constexpr int64_t chunk_numel = 32768;

// All elements in a row, each tensor filled up to whole blocks, cut into chunks.
class Chunks {
  public:
    Chunks(const zinf_optim_tensor* tensors, int64_t num) : starts_(static_cast<size_t>(num) + 1) {
        for (int64_t i = 0; i < num; ++i) {
            const int64_t blocks = (tensors[i].numel + ZINF_OPTIM_BLOCK - 1) / ZINF_OPTIM_BLOCK;
            starts_[static_cast<size_t>(i) + 1] =
                starts_[static_cast<size_t>(i)] + blocks * ZINF_OPTIM_BLOCK;
        }
    }

    int64_t num() const { return (starts_.back() + chunk_numel - 1) / chunk_numel; }

    // Calls `work(tensor, begin, end)` for all that lies within the chunk.
    template <typename Work>
    void each(const zinf_optim_tensor* tensors, int64_t chunk, const Work& work) const {
        const int64_t start = chunk * chunk_numel;
        const int64_t stop = std::min(start + chunk_numel, starts_.back());
        auto next = std::upper_bound(starts_.begin(), starts_.end(), start);
        for (size_t i = static_cast<size_t>(next - starts_.begin()) - 1;
             i + 1 < starts_.size() && starts_[i] < stop; ++i) {
            const int64_t begin = std::max<int64_t>(0, start - starts_[i]);
            const int64_t end = std::min(stop - starts_[i], tensors[i].numel);
            if (begin < end) {
                work(static_cast<int64_t>(i), begin, end);
            }
        }
    }

  private:
    std::vector<int64_t> starts_;
};

// Calls `work(chunk)` for each chunk on the threads of `pool`.
template <typename Work>
void share_out(zinf_pool* pool, int64_t num_chunks, const Work& work) {
    const zinf_chunk call = [](void* context, uint64_t chunk) {
        (*static_cast<const Work*>(context))(static_cast<int64_t>(chunk));
    };
    void* const context = const_cast<Work*>(&work);
    if (pool != nullptr && zinf_pool_run(pool, static_cast<uint64_t>(num_chunks), call, context) == 0) {
        return;
    }
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) work(chunk);
}

bool gradients_finite(const Kernels& kernels, const zinf_optim_call& call,
                      const zinf_optim_tensor* tensors, const Chunks& chunks, zinf_pool* pool) {
    std::atomic<bool> finite{true};
    share_out(pool, chunks.num(), [&](int64_t chunk) {
        chunks.each(tensors, chunk, [&](int64_t i, int64_t begin, int64_t end) {
            if (finite.load(std::memory_order_relaxed) &&
                !kernels.all_finite(call.grad_type, tensors[i].grad, begin, end)) {
                finite.store(false, std::memory_order_relaxed);
            }
        });
    });
    return finite.load();
}

int32_t step(const zinf_optim_call& call, const zinf_optim_tensor* tensors, int64_t num,
             zinf_pool* pool) {
    const Kernels* const kernels = kernels_for(call);
    const auto sensible = [&](const zinf_optim_tensor& of) { return tensor_makes_sense(call, of); };
    if (kernels == nullptr || num < 0 || !call_makes_sense(call) ||
        !std::all_of(tensors, tensors + num, sensible)) {
        return -EINVAL;
    }
    const Chunks chunks(tensors, num);
    if ((call.flags & ZINF_OPTIM_CHECK_FINITE) &&
        !gradients_finite(*kernels, call, tensors, chunks, pool)) {
        return 1;
    }
    share_out(pool, chunks.num(), [&](int64_t chunk) {
        chunks.each(tensors, chunk, [&](int64_t i, int64_t begin, int64_t end) {
            kernels->update(call, tensors[i], begin, end);
        });
    });
    return 0;
}

int32_t square_sums(const zinf_optim_call& call, const zinf_optim_tensor* tensors, int64_t num,
                    zinf_pool* pool, double* sums) {
    const Kernels* const kernels = kernels_for(call);
    if (kernels == nullptr || num < 0 || !is_float(call.grad_type)) return -EINVAL;
    std::vector<int64_t> firsts(static_cast<size_t>(num) + 1);
    for (size_t i = 0; i + 1 < firsts.size(); ++i) {
        if (tensors[i].numel < 0) return -EINVAL;
        firsts[i + 1] = firsts[i] + (tensors[i].numel + chunk_numel - 1) / chunk_numel;
    }
    std::vector<double> parts(static_cast<size_t>(firsts.back()));
    share_out(pool, firsts.back(), [&](int64_t part) {
        const auto next = std::upper_bound(firsts.begin(), firsts.end(), part);
        const auto i = static_cast<size_t>(next - firsts.begin()) - 1;
        const int64_t begin = (part - firsts[i]) * chunk_numel;
        const int64_t end = std::min(begin + chunk_numel, tensors[i].numel);
        parts[static_cast<size_t>(part)] =
            kernels->square_sum(call.grad_type, tensors[i].grad, begin, end);
    });
    for (size_t i = 0; i + 1 < firsts.size(); ++i) {
        sums[i] = 0.0;
        for (int64_t part = firsts[i]; part < firsts[i + 1]; ++part) {
            sums[i] += parts[static_cast<size_t>(part)];
        }
    }
    return 0;
}

}  // namespace
}  // namespace zinf::optim

extern "C" {

int32_t zinf_optim_step(const zinf_optim_call* call, const zinf_optim_tensor* tensors,
                        int64_t num_tensors, zinf_pool* pool) {
    try {
        return zinf::optim::step(*call, tensors, num_tensors, pool);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

int32_t zinf_optim_square_sums(const zinf_optim_call* call, const zinf_optim_tensor* tensors,
                               int64_t num_tensors, zinf_pool* pool, double* sums) {
    try {
        return zinf::optim::square_sums(*call, tensors, num_tensors, pool, sums);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}
}
