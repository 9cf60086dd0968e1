// States in 8 bits, by blocks of ZINF_OPTIM_BLOCK elements that share a scale, as in: Dettmers, Lewis,
// Shleifer, Zettlemoyer: 8-bit optimizers via block-wise quantization; ICLR 2022.
//
// Codes are small floating point numbers (Micikevicius et al.: FP8 formats for deep learning;
// arXiv 2209.05433), because states span many magnitudes within a block, and because arithmetic
// makes them without tables.  Moments with a sign are E4M3.  Second moments have none and take
// five bits for the exponent instead.  The largest code is 1.875, which stands for the largest
// magnitude of the block.  There are no codes for infinity and NaN: such a block has a scale
// that is not finite.
//
// The error of an element is at most 1/16 of it above 2^-14 (signed) or 2^-30 (unsigned) of the
// scale, and half of 2^-17 or 2^-33 of the scale below; rounding stochastically, twice as much.
// A second moment that is not zero never becomes zero: it is a divisor.

template <bool Signed>
struct Code {
    static constexpr uint32_t bias = Signed ? 112u << 23 : 96u << 23;
    static constexpr uint32_t smallest_normal = bias + (1u << 23);
    static constexpr uint32_t largest = Signed ? 127u : 255u;
    // Adding this makes the last bit of the sum one step of what is below the normal codes.
    static constexpr float shifter = Signed ? 0x1p6f : 0x1p-10f;
    static constexpr float steps = Signed ? 0x1p17f : 0x1p33f;
};

template <bool Signed>
static void from_codes(const uint8_t* __restrict codes, float scale, float* __restrict to,
                       int64_t num) {
    using C = Code<Signed>;
    for (int64_t i = 0; i < num; ++i) {
        const uint32_t code = codes[i] & C::largest;
        const float normal = float_of((code << 20) + C::bias);
        const float tiny =
            float_of((code << 20) + C::smallest_normal) - float_of(C::smallest_normal);
        const float value = (code < 8 ? tiny : normal) * scale;
        to[i] = Signed && (codes[i] & 128u) ? -value : value;
    }
}

// Returns the scale of the block: zero for a block without anything to keep.
static float scale_of(const float* __restrict from, int64_t num) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < num; ++i) {
        const uint32_t size = bits_of(from[i]) & magnitude;
        largest = size > largest ? size : largest;
    }
    const float scale = float_of(largest) / 1.875f;
    return float_of(largest) < 0x1p-100f ? 0.0f : scale;
}

template <bool Signed, bool Stochastic>
static void to_codes(const float* __restrict from, float scale, uint8_t* __restrict codes,
                     const uint32_t* __restrict random, int64_t num) {
    using C = Code<Signed>;
    const float factor = scale > 0.0f && scale <= 0x1.fffffep127f ? 1.0f / scale : 0.0f;
    for (int64_t i = 0; i < num; ++i) {
        const uint32_t sign = Signed ? bits_of(from[i]) >> 24 & 128u : 0u;
        const float size = float_of(bits_of(from[i]) & magnitude) * factor;
        const uint32_t bits = bits_of(size) - C::bias;
        uint32_t normal, tiny;
        if constexpr (Stochastic) {
            normal = (bits + (random[i] << 4)) >> 20;
            const float part = static_cast<float>(static_cast<int32_t>(random[i])) * 0x1p-16f;
            const float sum = bits_of(size) < C::smallest_normal ? size * C::steps + part : 0.0f;
            tiny = static_cast<uint32_t>(static_cast<int32_t>(sum));
        } else {
            normal = (bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20;
            tiny = bits_of(size + C::shifter) - bits_of(C::shifter);
        }
        uint32_t code = bits_of(size) < C::smallest_normal ? tiny : normal;
        code = code > C::largest ? C::largest : code;
        if constexpr (!Signed) {
            code = code == 0 && size > 0.0f ? 1u : code;
        }
        codes[i] = static_cast<uint8_t>(code | sign);
    }
}
