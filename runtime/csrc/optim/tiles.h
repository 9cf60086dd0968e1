// Feeds the loops of core.h: spans of fp32 as they lie in memory, or, where a tensor is of
// another type, small tiles that are converted in the first-level cache on the way.

using Loop = void (*)(const Factors &, const Spans &);

// Turns flags into template arguments one after the other.
template <template <bool...> class Of, bool... Known>
struct Chosen {
    template <typename... Left>
    static Loop by(bool flag, Left... left) {
        return flag ? Chosen<Of, Known..., true>::by(left...)
                    : Chosen<Of, Known..., false>::by(left...);
    }
    static Loop by() { return Of<Known...>::loop; }
};

// Where there is FMA, sums that round twice are left to the baseline: see optim.cpp.
template <bool Fma, bool Penalty, bool Decay, bool Amsgrad, bool Small, bool OneSum, bool Foreign>
struct AdamLoop {
    static constexpr Loop loop =
        adam<Fma || always_fma, Penalty, Decay, Amsgrad, Small, OneSum && !Foreign, Foreign>;
};
template <bool Fma, bool Penalty, bool Nesterov, bool Moment, bool First, bool OneSum>
struct SgdLoop {
    static constexpr Buffer buffer =
        !Moment ? Buffer::none : First ? Buffer::first : Buffer::running;
    static constexpr Loop loop =
        sgd<Fma || always_fma, Penalty, buffer, Moment && Nesterov,
            OneSum && buffer == Buffer::running>;
};
template <bool Fma, bool Penalty, bool Foreign>
struct AdagradLoop {
    static constexpr Loop loop = adagrad<Fma || always_fma, Penalty, Foreign>;
};
template <bool Fma, bool Penalty, bool Centered, bool Momentum, bool Small, bool Foreign>
struct RmspropLoop {
    static constexpr Loop loop =
        rmsprop<Fma || always_fma, Penalty, Centered, Momentum, Small, Foreign>;
};
template <bool Fma, bool Decay>
struct LionLoop {
    static constexpr Loop loop = lion<Fma || always_fma, Decay>;
};

// `one_sum` asks for the loop of what torch's fused kernels compute last.
static Loop loop_for(const zinf_optim_call& call, bool one_sum) {
    const auto has = [&](int32_t flag) { return (call.flags & flag) != 0; };
    const bool fma = !has(ZINF_OPTIM_ROUND_TWICE), foreign = call.roots != nullptr;
    const bool penalty = has(ZINF_OPTIM_PENALTY), decay = has(ZINF_OPTIM_DECAY);
    const bool momentum = has(ZINF_OPTIM_MOMENTUM);
    const bool small = call.weight1 < 0.5f && call.weight1 > -0.5f;
    switch (call.kind) {
    case ZINF_OPTIM_ADAM:
        return Chosen<AdamLoop>::by(fma, penalty, decay, has(ZINF_OPTIM_AMSGRAD), small, one_sum,
                                    foreign);
    case ZINF_OPTIM_SGD:
        return Chosen<SgdLoop>::by(fma, penalty, has(ZINF_OPTIM_NESTEROV), momentum,
                                   has(ZINF_OPTIM_FIRST), one_sum);
    case ZINF_OPTIM_ADAGRAD:
        return Chosen<AdagradLoop>::by(fma, penalty, foreign);
    case ZINF_OPTIM_RMSPROP:
        return Chosen<RmspropLoop>::by(fma, penalty, has(ZINF_OPTIM_CENTERED), momentum, small,
                                       foreign);
    default:
        return Chosen<LionLoop>::by(fma, decay);
    }
}

static void to_floats(int32_t type, const void* from, int64_t at, float* to, int64_t num) {
    switch (type) {
    case ZINF_TYPE_BF16:
        return from_bf16(static_cast<const uint16_t *>(from) + at, to, num);
    case ZINF_TYPE_FP16:
        return from_fp16(static_cast<const uint16_t *>(from) + at, to, num);
    default:
        __builtin_memcpy(to, static_cast<const float *>(from) + at, sizeof(float) * num);
    }
}

static void to_halves(int32_t type, const float* from, void* to, int64_t at, int64_t num) {
    uint16_t* const place = static_cast<uint16_t *>(to) + at;
    type == ZINF_TYPE_BF16 ? to_bf16(from, place, num) : to_fp16(from, place, num);
}

// Converts one tile of a state, or of a parameter, and back.
class Store {
  public:
    Store(int32_t type, void* data, float* scales, bool is_signed)
        : type_(type), data_(data), scales_(scales), signed_(is_signed) {}

    float* open(int64_t at, int64_t num, float* room) const {
        if (data_ == nullptr) {
            return nullptr;
        }
        if (type_ == ZINF_TYPE_FP32) {
            return static_cast<float *>(data_) + at;
        }
        if (type_ != ZINF_TYPE_Q8) {
            to_floats(type_, data_, at, room, num);
            return room;
        }
        const uint8_t* const codes = static_cast<const uint8_t *>(data_) + at;
        for (int64_t i = 0; i < num; i += ZINF_OPTIM_BLOCK) {
            const int64_t part = num - i < ZINF_OPTIM_BLOCK ? num - i : ZINF_OPTIM_BLOCK;
            const float scale = scales_[(at + i) / ZINF_OPTIM_BLOCK];
            signed_ ? from_codes<true>(codes + i, scale, room + i, part)
                    : from_codes<false>(codes + i, scale, room + i, part);
        }
        return room;
    }

    // `draws` is null when rounding goes to the nearest; `block` is where the tile begins.
    void close(int64_t at, int64_t num, const float* room, const Draw* draws,
               uint64_t block) const {
        if (data_ == nullptr || type_ == ZINF_TYPE_FP32) {
            return;
        }
        const bool stochastic = draws != nullptr && type_ != ZINF_TYPE_FP16;
        if (!stochastic && type_ != ZINF_TYPE_Q8) {
            return to_halves(type_, room, data_, at, num);
        }
        alignas(64) uint32_t random[ZINF_OPTIM_BLOCK];
        for (int64_t i = 0; i < num; i += ZINF_OPTIM_BLOCK, ++block) {
            const int64_t part = num - i < ZINF_OPTIM_BLOCK ? num - i : ZINF_OPTIM_BLOCK;
            if (stochastic) {
                draw(*draws, block, random);
            }
            if (type_ == ZINF_TYPE_BF16) {
                to_bf16_stochastic(room + i, static_cast<uint16_t *>(data_) + at + i, random, part);
            } else {
                close_codes(at + i, part, room + i, stochastic ? random : nullptr);
            }
        }
    }

  private:
    void close_codes(int64_t at, int64_t num, const float* room, const uint32_t* random) const {
        const float scale = scale_of(room, num);
        uint8_t* const codes = static_cast<uint8_t *>(data_) + at;
        scales_[at / ZINF_OPTIM_BLOCK] = scale;
        if (signed_) {
            random ? to_codes<true, true>(room, scale, codes, random, num)
                   : to_codes<true, false>(room, scale, codes, random, num);
        } else {
            random ? to_codes<false, true>(room, scale, codes, random, num)
                   : to_codes<false, false>(room, scale, codes, random, num);
        }
    }

    int32_t type_;
    void* data_;
    float* scales_;
    bool signed_;
};

// Whether a state takes both signs: all but sums and averages of squares.
static bool has_sign(int32_t kind, int slot) {
    const bool squares = kind == ZINF_OPTIM_ADAGRAD || kind == ZINF_OPTIM_RMSPROP ? slot == 0 : slot > 0;
    return kind == ZINF_OPTIM_SGD || kind == ZINF_OPTIM_LION || !squares;
}

// Puts into `param` what `out` has where that is not `param`, rounded.
static void follow(int32_t type, const void* out, int64_t at, float* param, int64_t num) {
    alignas(64) uint16_t rounded[tile];
    alignas(64) float given[tile];
    const uint16_t* const now = static_cast<const uint16_t *>(out) + at;
    to_halves(type, param, rounded, 0, num);
    to_floats(type, out, at, given, num);
    for (int64_t i = 0; i < num; ++i) {
        param[i] = rounded[i] == now[i] ? param[i] : given[i];
    }
}

static void scale_gradient(const zinf_optim_call& call, float* grad, int64_t num) {
    const float factor = call.grad_factor, clip = call.clip_factor;
    if (call.grad_divisor != 1.0f && call.grad_type != ZINF_TYPE_FP32) {
        for (int64_t i = 0; i < num; ++i) grad[i] /= call.grad_divisor;
    }
    if (factor != 1.0f) {
        for (int64_t i = 0; i < num; ++i) grad[i] *= factor;
    }
    if (clip != 1.0f) {
        for (int64_t i = 0; i < num; ++i) grad[i] *= clip;
    }
    if (call.flags & ZINF_OPTIM_MAXIMIZE) {
        for (int64_t i = 0; i < num; ++i) grad[i] = -grad[i];
    }
}

static bool gradient_as_it_is(const zinf_optim_call& call) {
    return call.grad_type == ZINF_TYPE_FP32 && call.grad_factor == 1.0f && call.clip_factor == 1.0f &&
           !(call.flags & ZINF_OPTIM_MAXIMIZE);
}

static bool all_in_place(const zinf_optim_call& call) {
    bool plain = gradient_as_it_is(call) && call.grad_divisor == 1.0f &&
                 call.param_type == ZINF_TYPE_FP32;
    for (const int32_t type : call.state_type) {
        plain = plain && (type == ZINF_TYPE_FP32 || type == ZINF_TYPE_NONE);
    }
    return plain && call.out_type == ZINF_TYPE_NONE;
}

static Factors factors_of(const zinf_optim_call& call, const zinf_optim_tensor& of) {
    return {call.weight_decay, call.decay,    call.weight1, call.beta1,   call.beta2,
            call.weight2,      call.momentum, call.eps,     of.step_size, of.denom_divisor,
            call.roots,        call.roots_mode, call.set_roots_threads};
}

class Range {
  public:
    Range(const zinf_optim_call& call, const zinf_optim_tensor& of)
        : call_(call), of_(of), factors_(factors_of(call, of)),
          stores_{Store(call.param_type, of.param, nullptr, true), state(0), state(1), state(2)} {}

    void update(int64_t begin, int64_t end) const {
        const int64_t whole = of_.whole_vectors;
        const int64_t middle = whole < begin ? begin : whole < end ? whole : end;
        run(loop_for(call_, false), begin, middle);
        run(loop_for(call_, true), middle, end);
    }

  private:
    void run(Loop loop, int64_t begin, int64_t end) const {
        const bool in_place = all_in_place(call_);
        // A call of foreign roots has its price.  Other tiles are small, so that what is
        // converted is still in a first-level cache of 32 KiB when it is needed again.
        const int64_t most = call_.roots != nullptr ? tile
                             : in_place             ? end - begin
                                                    : ZINF_OPTIM_BLOCK;
        for (int64_t at = begin; at < end; at += most) {
            const int64_t num = end - at < most ? end - at : most;
            in_place ? direct(loop, at, num) : through_tile(loop, at, num);
        }
    }

    Store state(int slot) const {
        return Store(call_.state_type[slot], of_.state[slot], of_.scale[slot],
                     has_sign(call_.kind, slot));
    }

    void direct(Loop loop, int64_t begin, int64_t num) const {
        Spans spans{static_cast<float *>(of_.param) + begin,
                    static_cast<const float *>(of_.grad) + begin,
                    {nullptr, nullptr, nullptr},
                    num};
        for (int slot = 0; slot < ZINF_OPTIM_MAX_STATES; ++slot) {
            if (of_.state[slot] != nullptr) {
                spans.state[slot] = static_cast<float *>(of_.state[slot]) + begin;
            }
        }
        loop(factors_, spans);
    }

    void through_tile(Loop loop, int64_t at, int64_t num) const {
        alignas(64) float rooms[1 + ZINF_OPTIM_MAX_STATES][tile];
        alignas(64) float grads[tile];
        float* open[1 + ZINF_OPTIM_MAX_STATES];
        for (int slot = 0; slot <= ZINF_OPTIM_MAX_STATES; ++slot) {
            open[slot] = stores_[slot].open(at, num, rooms[slot]);
        }
        float* grad = static_cast<float*>(of_.grad) + at;
        if (call_.flags & ZINF_OPTIM_FOLLOW) {
            follow(call_.out_type, of_.out, at, open[0], num);
        }
        if (call_.grad_divisor != 1.0f && call_.grad_type == ZINF_TYPE_FP32) {
            for (int64_t i = 0; i < num; ++i) grad[i] /= call_.grad_divisor;
        }
        if (!gradient_as_it_is(call_)) {
            to_floats(call_.grad_type, of_.grad, at, grads, num);
            scale_gradient(call_, grads, num);
            grad = grads;
        }
        loop(factors_, {open[0], grad, {open[1], open[2], open[3]}, num});
        const uint64_t block = static_cast<uint64_t>(of_.first + at) / ZINF_OPTIM_BLOCK;
        const bool stochastic = (call_.flags & ZINF_OPTIM_STOCHASTIC) != 0;
        for (uint32_t slot = 0; slot <= ZINF_OPTIM_MAX_STATES; ++slot) {
            const Draw draws{call_.seed, static_cast<uint32_t>(call_.step),
                             static_cast<uint32_t>(of_.stream), slot};
            stores_[slot].close(at, num, open[slot], stochastic ? &draws : nullptr, block);
        }
        if (of_.out != nullptr) {
            to_halves(call_.out_type, open[0], of_.out, at, num);
        }
    }

    const zinf_optim_call& call_;
    const zinf_optim_tensor& of_;
    Factors factors_;
    Store stores_[1 + ZINF_OPTIM_MAX_STATES];
};

static void update_range(const zinf_optim_call& call, const zinf_optim_tensor& of, int64_t begin,
                         int64_t end) {
    Range(call, of).update(begin, end);
}

// Sixteen sums side by side, whatever the width of vectors, joined in one order at the end.
constexpr int64_t num_sums = 16;

static double square_sum(int32_t type, const void* grad, int64_t begin, int64_t end) {
    alignas(64) float room[tile];
    alignas(64) double sums[num_sums] = {};
    for (int64_t at = begin; at < end; at += tile) {
        const int64_t num = end - at < tile ? end - at : tile;
        to_floats(type, grad, at, room, num);
        for (int64_t i = num; i % num_sums != 0; ++i) {
            room[i] = 0.0f;
        }
        for (int64_t i = 0; i < num; i += num_sums) {
            for (int64_t lane = 0; lane < num_sums; ++lane) {
                const double value = room[i + lane];
                sums[lane] += value * value;
            }
        }
    }
    for (int64_t width = num_sums / 2; width > 0; width /= 2) {
        for (int64_t lane = 0; lane < width; ++lane) {
            sums[lane] += sums[lane + width];
        }
    }
    return sums[0];
}

template <typename Word>
static bool any_exponent_full(const Word* __restrict words, int64_t num, Word exponent) {
    Word found = 0;
    for (int64_t i = 0; i < num; ++i) {
        found |= static_cast<Word>((words[i] & exponent) == exponent);
    }
    return found != 0;
}

static bool all_finite(int32_t type, const void* grad, int64_t begin, int64_t end) {
    const int64_t num = end - begin;
    if (type == ZINF_TYPE_FP32) {
        return !any_exponent_full<uint32_t>(static_cast<const uint32_t *>(grad) + begin, num,
                                            infinite);
    }
    const uint16_t exponent = type == ZINF_TYPE_BF16 ? 0x7f80 : 0x7c00;
    return !any_exponent_full<uint16_t>(static_cast<const uint16_t *>(grad) + begin, num, exponent);
}
