// The arithmetic of the optimizers in fp32, one loop each.  Included once for each instruction
// set, within a namespace of its own.
//
// Note [Roundings].  torch's single-tensor loops are chains of elementwise kernels, each of which
// rounds what it stores.  Within a kernel its vector code multiplies and adds in one rounding
// wherever a sum has a product: `add` with alpha, `addcmul`, `lerp`.  The loops below keep those
// roundings: `madd` is one rounding, every other operation is one of its own, and the compiler is
// told to contract nothing by itself.  Without FMA (torch's lowest dispatch level) the same sums
// round twice: Fma = false.
//
// Square roots are those of the loops we stand for.  torch's fused kernels use the processor's,
// which are rounded correctly.  `Tensor.sqrt`, which the other loops use, is that of MKL in
// torch's builds for x86-64: one in five of its results is off by one unit.  Such roots come
// from the function that the caller passes (Foreign), tile by tile.
//
// torch's fused kernels end in a scalar loop for what is left beyond whole vectors.  There the
// compiler joined the decayed state, not the new square, with the sum: OneSum.
//
// tests/native compares every loop with torch bit by bit.

template <bool Fma>
static inline float madd(float a, float b, float c) {
    if constexpr (Fma) {
        return __builtin_fmaf(a, b, c);
    }
    return a * b + c;
}

// The larger of two, NaN if one of them is; in the scalar loop of torch's fused kernels, if the
// old one is.
template <bool OneSum>
static inline float larger(float old, float fresh) {
    if constexpr (OneSum) {
        return old < fresh ? fresh : old;
    }
    return (old > fresh) | (old != old) ? old : fresh;
}

struct Spans {
    float* param;
    const float* grad;
    float* state[ZINF_OPTIM_MAX_STATES];
    int64_t num;
};

struct Factors {
    float weight_decay, decay, weight1, beta1, beta2, weight2, momentum, eps;
    float step_size, denom_divisor;
    void (*roots)(int32_t, const float *, float *, int64_t);
    int64_t roots_mode;
    int32_t (*set_roots_threads)(int32_t);
};

// Elements that a loop with foreign roots takes at most.
constexpr int64_t tile = 8 * ZINF_OPTIM_BLOCK;

// By itself MKL would start a team of threads for each of ours that calls it, and have it spin.
static inline void take_roots(const Factors& f, float* values, int64_t num) {
    const int32_t before = f.set_roots_threads ? f.set_roots_threads(1) : 0;
    f.roots(static_cast<int32_t>(num), values, values, f.roots_mode);
    if (f.set_roots_threads) f.set_roots_threads(before);
}

template <bool Fma, bool Penalty>
static inline float with_penalty(float grad, float param, float weight_decay) {
    return Penalty ? madd<Fma>(param, weight_decay, grad) : grad;
}

// torch.lerp: the form that is exact at the nearer end.
template <bool Fma, bool Small>
static inline float lerp(float old, float grad, float weight) {
    return Small ? madd<Fma>(weight, grad - old, old) : madd<Fma>(weight - 1.0f, grad - old, grad);
}

// Decay times the old value plus weight times the square of the gradient.
template <bool Fma, bool OneSum>
static inline float squares(float old, float grad, float decay, float weight) {
    if constexpr (OneSum) {
        return madd<Fma>(old, decay, weight * grad * grad);
    }
    return madd<Fma>(weight * grad, grad, old * decay);
}

template <bool Fma, bool Penalty, bool Decay, bool Amsgrad, bool Small, bool OneSum, bool Foreign>
static void adam(const Factors& f, const Spans& s) {
    float* __restrict param = s.param;
    const float* __restrict grads = s.grad;
    float* __restrict avg = s.state[0];
    float* __restrict avg_sq = s.state[1];
    float* __restrict max_sq = s.state[2];
    const float weight_decay = f.weight_decay, decay = f.decay, weight1 = f.weight1;
    const float beta2 = f.beta2, weight2 = f.weight2, eps = f.eps;
    const float divisor = f.denom_divisor, step = -f.step_size;
    const auto moved = [&](float value, float moment, float root) {
        const float shrunk = Decay ? value * decay : value;
        return shrunk + step * moment / (root / divisor + eps);
    };
    alignas(64) float roots[Foreign ? tile : 1];
    for (int64_t i = 0; i < s.num; ++i) {
        const float grad = with_penalty<Fma, Penalty>(grads[i], param[i], weight_decay);
        const float moment1 = lerp<Fma, Small>(avg[i], grad, weight1);
        const float moment2 = squares<Fma, OneSum>(avg_sq[i], grad, beta2, weight2);
        avg[i] = moment1;
        avg_sq[i] = moment2;
        float largest = moment2;
        if constexpr (Amsgrad) {
            largest = larger<OneSum>(max_sq[i], moment2);
            max_sq[i] = largest;
        }
        if constexpr (Foreign) {
            roots[i] = largest;
        } else {
            param[i] = moved(param[i], moment1, __builtin_sqrtf(largest));
        }
    }
    if constexpr (Foreign) {
        take_roots(f, roots, s.num);
        for (int64_t i = 0; i < s.num; ++i) {
            param[i] = moved(param[i], avg[i], roots[i]);
        }
    }
}

enum class Buffer { none, first, running };

template <bool Fma, bool Penalty, Buffer Momentum, bool Nesterov, bool OneSum>
static void sgd(const Factors& f, const Spans& s) {
    float* __restrict param = s.param;
    const float* __restrict grads = s.grad;
    float* __restrict buffer = s.state[0];
    const float weight_decay = f.weight_decay, momentum = f.momentum, weight = f.weight1;
    const float step = -f.step_size;
    for (int64_t i = 0; i < s.num; ++i) {
        float grad = with_penalty<Fma, Penalty>(grads[i], param[i], weight_decay);
        if constexpr (Momentum != Buffer::none) {
            float moment = grad;
            if constexpr (Momentum == Buffer::running) {
                moment = OneSum ? madd<Fma>(buffer[i], momentum, grad * weight)
                                : madd<Fma>(grad, weight, buffer[i] * momentum);
            }
            buffer[i] = moment;
            grad = Nesterov ? madd<Fma>(moment, momentum, grad) : moment;
        }
        param[i] = madd<Fma>(grad, step, param[i]);
    }
}

template <bool Fma, bool Penalty, bool Foreign>
static void adagrad(const Factors& f, const Spans& s) {
    float* __restrict param = s.param;
    const float* __restrict grads = s.grad;
    float* __restrict sum = s.state[0];
    const float weight_decay = f.weight_decay, eps = f.eps, step = -f.step_size;
    const auto moved = [&](float value, float grad, float root) {
        return value + step * grad / (root + eps);
    };
    alignas(64) float roots[Foreign ? tile : 1];
    for (int64_t i = 0; i < s.num; ++i) {
        const float grad = with_penalty<Fma, Penalty>(grads[i], param[i], weight_decay);
        const float total = madd<Fma>(grad, grad, sum[i]);
        sum[i] = total;
        if constexpr (Foreign) {
            roots[i] = total;
        } else {
            param[i] = moved(param[i], grad, __builtin_sqrtf(total));
        }
    }
    if constexpr (Foreign) {
        take_roots(f, roots, s.num);
        for (int64_t i = 0; i < s.num; ++i) {
            const float grad = with_penalty<Fma, Penalty>(grads[i], param[i], weight_decay);
            param[i] = moved(param[i], grad, roots[i]);
        }
    }
}

template <bool Fma, bool Penalty, bool Centered, bool Momentum, bool Small, bool Foreign>
static void rmsprop(const Factors& f, const Spans& s) {
    float* __restrict param = s.param;
    const float* __restrict grads = s.grad;
    float* __restrict avg_sq = s.state[0];
    float* __restrict avg = s.state[1];
    float* __restrict buffer = s.state[2];
    const float weight_decay = f.weight_decay, weight1 = f.weight1, beta2 = f.beta2;
    const float weight2 = f.weight2, momentum = f.momentum, eps = f.eps, step = -f.step_size;
    const auto move = [&](int64_t i, float grad, float root) {
        const float denom = root + eps;
        if constexpr (Momentum) {
            const float moment = buffer[i] * momentum + grad / denom;
            buffer[i] = moment;
            param[i] = madd<Fma>(moment, step, param[i]);
        } else {
            param[i] = param[i] + step * grad / denom;
        }
    };
    alignas(64) float roots[Foreign ? tile : 1];
    for (int64_t i = 0; i < s.num; ++i) {
        const float grad = with_penalty<Fma, Penalty>(grads[i], param[i], weight_decay);
        float square = squares<Fma, false>(avg_sq[i], grad, beta2, weight2);
        avg_sq[i] = square;
        if constexpr (Centered) {
            const float mean = lerp<Fma, Small>(avg[i], grad, weight1);
            avg[i] = mean;
            square = madd<Fma>(-mean, mean, square);
        }
        if constexpr (Foreign) {
            roots[i] = square;
        } else {
            move(i, grad, __builtin_sqrtf(square));
        }
    }
    if constexpr (Foreign) {
        take_roots(f, roots, s.num);
        for (int64_t i = 0; i < s.num; ++i) {
            move(i, with_penalty<Fma, Penalty>(grads[i], param[i], weight_decay), roots[i]);
        }
    }
}

template <bool Fma, bool Decay>
static void lion(const Factors& f, const Spans& s) {
    float* __restrict param = s.param;
    const float* __restrict grads = s.grad;
    float* __restrict avg = s.state[0];
    const float decay = f.decay, beta1 = f.beta1, weight1 = f.weight1, beta2 = f.beta2;
    const float weight2 = f.weight2, step = -f.step_size;
    for (int64_t i = 0; i < s.num; ++i) {
        const float shrunk = Decay ? param[i] * decay : param[i];
        const float blend = madd<Fma>(grads[i], weight1, avg[i] * beta1);
        const float sign = (blend > 0.0f ? 1.0f : 0.0f) - (blend < 0.0f ? 1.0f : 0.0f);
        avg[i] = madd<Fma>(grads[i], weight2, avg[i] * beta2);
        param[i] = madd<Fma>(sign, step, shrunk);
    }
}
