// Between fp32 and the types that are stored: bf16 and fp16, a span at a time.  Plain integer
// arithmetic without branches, which compilers turn into vector code for every instruction set,
// so that all of them give the same bits by construction.

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

static void from_bf16(const uint16_t* __restrict from, float* __restrict to, int64_t num) {
    for (int64_t i = 0; i < num; ++i) {
        to[i] = float_of(static_cast<uint32_t>(from[i]) << 16);
    }
}

constexpr uint32_t infinite = 0x7f800000u;
constexpr uint32_t magnitude = 0x7fffffffu;

// Every NaN becomes the one that torch's scalar conversion makes.
static void to_bf16(const float* __restrict from, uint16_t* __restrict to, int64_t num) {
    for (int64_t i = 0; i < num; ++i) {
        const uint32_t bits = bits_of(from[i]);
        const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        to[i] = static_cast<uint16_t>((bits & magnitude) > infinite ? 0x7fc0u : rounded);
    }
}

// Rounds away from zero with the probability of the part that is cut off; `random` holds 16
// bits for each element.
static void to_bf16_stochastic(const float* __restrict from, uint16_t* __restrict to,
                               const uint32_t* __restrict random, int64_t num) {
    for (int64_t i = 0; i < num; ++i) {
        const uint32_t bits = bits_of(from[i]);
        const uint32_t kept = (bits & magnitude) >= infinite ? bits : bits + random[i];
        to[i] = static_cast<uint16_t>((bits & magnitude) > infinite ? 0x7fc0u : kept >> 16);
    }
}

static void from_fp16(const uint16_t* __restrict from, float* __restrict to, int64_t num) {
    constexpr uint32_t smallest_normal = 113u << 23;  // 2^-14
    for (int64_t i = 0; i < num; ++i) {
        const uint32_t half = from[i];
        const uint32_t shifted = (half & 0x7fffu) << 13;
        const uint32_t exponent = shifted & (0x7c00u << 13);
        const uint32_t normal = shifted + (112u << 23);
        const uint32_t special = shifted + (224u << 23);
        const uint32_t tiny =
            bits_of(float_of(shifted + smallest_normal) - float_of(smallest_normal));
        const uint32_t value = exponent == 0 ? tiny : exponent == (0x7c00u << 13) ? special : normal;
        to[i] = float_of(value | ((half & 0x8000u) << 16));
    }
}

static void to_fp16(const float* __restrict from, uint16_t* __restrict to, int64_t num) {
    constexpr uint32_t smallest_normal = 113u << 23;  // 2^-14
    constexpr uint32_t too_large = 143u << 23;        // 2^16
    constexpr uint32_t shifter = 126u << 23;          // 0.5: one unit of it is fp16's smallest
    for (int64_t i = 0; i < num; ++i) {
        const uint32_t bits = bits_of(from[i]);
        const uint32_t size = bits & magnitude;
        const uint32_t normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
        const uint32_t tiny = bits_of(float_of(size) + float_of(shifter)) - shifter;
        const uint32_t special = size > infinite ? 0x7e00u : 0x7c00u;
        const uint32_t value =
            size >= too_large ? special : size < smallest_normal ? tiny : normal;
        to[i] = static_cast<uint16_t>(value | ((bits >> 16) & 0x8000u));
    }
}
