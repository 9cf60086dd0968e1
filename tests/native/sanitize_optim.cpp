// Drives the optimizers through their C interface, to be built with sanitizers: every kind, with
// every flag and type, on memory that ends where the tensors end.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "zinf_optim.h"

namespace {

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

size_t bytes_of(int32_t type) { return type == ZINF_TYPE_FP32 ? 4 : type == ZINF_TYPE_Q8 ? 1 : 2; }

// Bytes of any pattern, or finite numbers of about one.
struct Memory {
    Memory(size_t size, bool wild, std::minstd_rand& random) : bytes(size) {
        for (size_t i = 0; i < size; ++i) bytes[i] = wild ? static_cast<char>(random()) : 0x3d;
    }
    std::vector<char> bytes;
};

struct Tensors {
    std::vector<Memory> kept;
    std::vector<zinf_optim_tensor> rows;
};

bool has_state(const zinf_optim_call& call, int slot) {
    const auto has = [&](int32_t flag) { return (call.flags & flag) != 0; };
    if (call.kind == ZINF_OPTIM_ADAM) return slot < 2 || has(ZINF_OPTIM_AMSGRAD);
    if (call.kind == ZINF_OPTIM_SGD) return slot == 0 && has(ZINF_OPTIM_MOMENTUM);
    if (call.kind == ZINF_OPTIM_RMSPROP)
        return slot == 0 || has(slot == 1 ? ZINF_OPTIM_CENTERED : ZINF_OPTIM_MOMENTUM);
    return slot == 0;
}

Tensors make(const zinf_optim_call& call, bool wild, std::minstd_rand& random) {
    Tensors made;
    for (int64_t numel : {0, 1, 7, 16, 33, 70, 255, 256, 257, 3001, 33000}) {
        const auto room = [&](size_t size) -> void* {
            made.kept.emplace_back(size, wild, random);
            return made.kept.back().bytes.data();
        };
        const auto count = static_cast<size_t>(numel);
        zinf_optim_tensor row{};
        row.param = room(count * bytes_of(call.param_type));
        row.grad = room(count * bytes_of(call.grad_type));
        for (int slot = 0; slot < ZINF_OPTIM_MAX_STATES; ++slot) {
            const int32_t type = call.state_type[slot];
            if (type == ZINF_TYPE_NONE) continue;
            row.state[slot] = room(count * bytes_of(type));
            const size_t blocks = (count + ZINF_OPTIM_BLOCK - 1) / ZINF_OPTIM_BLOCK;
            if (type == ZINF_TYPE_Q8) row.scale[slot] = static_cast<float*>(room(4 * blocks));
        }
        if (call.out_type != ZINF_TYPE_NONE) row.out = room(count * bytes_of(call.out_type));
        row.numel = numel;
        row.whole_vectors = numel / 8 * 8;
        row.step_size = 1e-2f;
        row.denom_divisor = 0.5f;
        made.rows.push_back(row);
    }
    return made;
}

void use(zinf_optim_call& call, zinf_pool* pool, std::minstd_rand& random) {
    for (const int32_t state : {ZINF_TYPE_FP32, ZINF_TYPE_BF16, ZINF_TYPE_Q8}) {
        for (int slot = 0; slot < ZINF_OPTIM_MAX_STATES; ++slot)
            call.state_type[slot] = has_state(call, slot) ? state : ZINF_TYPE_NONE;
        for (const bool wild : {false, true}) {
            Tensors tensors = make(call, wild, random);
            const auto num = static_cast<int64_t>(tensors.rows.size());
            for (int32_t isa = ZINF_ISA_BASELINE; isa <= zinf_isa_best(); ++isa) {
                call.isa = isa;
                const int32_t code = zinf_optim_step(&call, tensors.rows.data(), num, pool);
                check(code == 0 || (wild && code == 1), "tensors are updated");
                std::vector<double> sums(tensors.rows.size());
                check(zinf_optim_square_sums(&call, tensors.rows.data(), num, pool, sums.data()) == 0,
                      "squares are added up");
            }
        }
    }
}

}  // namespace

int main() {
    zinf_pool_options options{3, 0};
    zinf_pool* pool = nullptr;
    check(zinf_pool_create(&options, &pool) == 0, "a pool is made");
    std::minstd_rand random(1);
    const int32_t types[][3] = {{ZINF_TYPE_FP32, ZINF_TYPE_FP32, ZINF_TYPE_NONE},
                                {ZINF_TYPE_FP32, ZINF_TYPE_BF16, ZINF_TYPE_BF16},
                                {ZINF_TYPE_FP32, ZINF_TYPE_FP16, ZINF_TYPE_FP16},
                                {ZINF_TYPE_BF16, ZINF_TYPE_BF16, ZINF_TYPE_NONE},
                                {ZINF_TYPE_FP16, ZINF_TYPE_FP16, ZINF_TYPE_NONE}};
    for (int32_t kind = ZINF_OPTIM_ADAM; kind <= ZINF_OPTIM_LION; ++kind) {
        for (int32_t flags = 0; flags < 2 * ZINF_OPTIM_FOLLOW; flags += 203) {
            zinf_optim_call call{};
            call.kind = kind;
            call.flags = flags;
            const auto& type = types[random() % 5];
            call.param_type = type[0], call.grad_type = type[1], call.out_type = type[2];
            if (call.out_type == ZINF_TYPE_NONE) call.flags &= ~ZINF_OPTIM_FOLLOW;
            call.grad_divisor = random() % 2 ? 3.0f : 1.0f;
            call.grad_factor = random() % 2 ? 0.5f : 1.0f;
            call.clip_factor = random() % 2 ? 0.5f : 1.0f;
            call.decay = call.beta1 = call.beta2 = call.momentum = 0.9f;
            call.weight_decay = call.weight1 = call.weight2 = 0.1f;
            call.eps = 1e-8f;
            use(call, pool, random);
        }
    }
    zinf_pool_destroy(pool);
    return 0;
}
