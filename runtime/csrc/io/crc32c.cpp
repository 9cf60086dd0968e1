#include "io/crc32c.h"

#include <array>
#include <cstring>

#include "zinf.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace zinf {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed: the lowest comes first

constexpr std::array<uint32_t, 256> make_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
        table[byte] = crc;
    }
    return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

// Pages whose sums are computed side by side.
constexpr size_t kTogether = 4;

// The least that the processor fetches from memory.
constexpr size_t kLine = 64;

using Update = uint32_t (*)(uint32_t crc, const unsigned char* data, size_t nbytes);

uint32_t update_portable(uint32_t crc, const unsigned char* data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; ++i) crc = kTable[(crc ^ data[i]) & 0xff] ^ crc >> 8;
    return crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) uint32_t update_fast(uint32_t crc, const unsigned char* data,
                                                       size_t nbytes) {
    uint64_t wide = crc;
    for (; nbytes >= 8; data += 8, nbytes -= 8) {
        uint64_t word;
        std::memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = static_cast<uint32_t>(wide);
    for (; nbytes; ++data, --nbytes) crc = _mm_crc32_u8(crc, *data);
    return crc;
}

// The instruction takes three cycles and can start in each: four pages are done side by side.
__attribute__((target("sse4.2"))) void pages_fast(const unsigned char* data, uint32_t* crcs) {
    uint64_t wide[kTogether] = {~0u, ~0u, ~0u, ~0u};
    for (size_t line = 0; line < ZINF_SUM_BYTES; line += kLine) {
        // The processor's own prefetching ends with each page.
        for (size_t i = 0; i < kTogether; ++i)
            __builtin_prefetch(data + (i + kTogether) * ZINF_SUM_BYTES + line);
        for (size_t at = line; at < line + kLine; at += 8) {
            for (size_t i = 0; i < kTogether; ++i) {
                uint64_t word;
                std::memcpy(&word, data + i * ZINF_SUM_BYTES + at, 8);
                wide[i] = _mm_crc32_u64(wide[i], word);
            }
        }
    }
    for (size_t i = 0; i < kTogether; ++i) crcs[i] = ~static_cast<uint32_t>(wide[i]);
}

bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }

#elif defined(__aarch64__)

__attribute__((target("+crc"))) uint32_t update_fast(uint32_t crc, const unsigned char* data,
                                                     size_t nbytes) {
    for (; nbytes >= 8; data += 8, nbytes -= 8) {
        uint64_t word;
        std::memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
    }
    for (; nbytes; ++data, --nbytes) crc = __crc32cb(crc, *data);
    return crc;
}

__attribute__((target("+crc"))) void pages_fast(const unsigned char* data, uint32_t* crcs) {
    uint32_t wide[kTogether] = {~0u, ~0u, ~0u, ~0u};
    for (size_t at = 0; at < ZINF_SUM_BYTES; at += 8) {
        for (size_t i = 0; i < kTogether; ++i) {
            uint64_t word;
            std::memcpy(&word, data + i * ZINF_SUM_BYTES + at, 8);
            wide[i] = __crc32cd(wide[i], word);
        }
    }
    for (size_t i = 0; i < kTogether; ++i) crcs[i] = ~wide[i];
}

bool has_instruction() { return getauxval(AT_HWCAP) & HWCAP_CRC32; }

#else

uint32_t update_fast(uint32_t crc, const unsigned char* data, size_t nbytes) {
    return update_portable(crc, data, nbytes);
}

void pages_fast(const unsigned char* data, uint32_t* crcs) {
    for (size_t i = 0; i < kTogether; ++i)
        crcs[i] = ~update_portable(~0u, data + i * ZINF_SUM_BYTES, ZINF_SUM_BYTES);
}

bool has_instruction() { return false; }

#endif

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t nbytes) {
    static const Update update = has_instruction() ? update_fast : update_portable;
    return ~update(~crc, static_cast<const unsigned char*>(data), nbytes);
}

void page_sums(const void* data, size_t num_pages, uint32_t* sums) {
    static const bool is_fast = has_instruction();
    const auto* bytes = static_cast<const unsigned char*>(data);
    size_t done = 0;
    for (; is_fast && num_pages - done >= kTogether; done += kTogether)
        pages_fast(bytes + done * ZINF_SUM_BYTES, sums + done);
    for (; done < num_pages; ++done)
        sums[done] = crc32c(0, bytes + done * ZINF_SUM_BYTES, ZINF_SUM_BYTES);
    for (size_t i = 0; i < num_pages; ++i)
        if (sums[i] == 0) sums[i] = 1;
}

uint32_t crc32c_portable(uint32_t crc, const void* data, size_t nbytes) {
    return ~update_portable(~crc, static_cast<const unsigned char*>(data), nbytes);
}

}  // namespace zinf

extern "C" uint32_t zinf_crc32c(uint32_t crc, const void* data, uint64_t nbytes,
                                int32_t portable) {
    return portable ? zinf::crc32c_portable(crc, data, nbytes) : zinf::crc32c(crc, data, nbytes);
}

extern "C" void zinf_page_sums(const void* data, uint64_t num_pages, uint32_t* sums) {
    zinf::page_sums(data, num_pages, sums);
}
