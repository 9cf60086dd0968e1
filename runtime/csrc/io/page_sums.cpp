#include "io/page_sums.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "io/blocks.h"
#include "io/crc32c.h"
#include "zinf.h"

namespace zinf {

static_assert(kPage == ZINF_SUM_BYTES);

namespace {

constexpr long kCachestat = 451;  // the same number on every architecture, since Linux 6.5
constexpr uint64_t kAtOnce = 64;  // pages whose sums fit on the stack

// Two requests may touch one page, each a part of it.
std::atomic_ref<uint32_t> shared(uint32_t& sum) { return std::atomic_ref<uint32_t>(sum); }

// Whether a page is in the page cache, or was there and has been evicted; true if nobody knows.
bool in_cache(int fd, uint64_t offset) {
    const uint64_t asked[2] = {offset, kPage};
    uint64_t found[5] = {};  // cached, dirty, under writeback, evicted, recently evicted
    if (syscall(kCachestat, fd, asked, found, 0u) != 0) return true;
    return found[0] + found[3] > 0;
}

}  // namespace

void forget_sums(uint32_t* sums, uint64_t offset, uint64_t nbytes) {
    const uint64_t num = (offset + nbytes + kPage - 1) / kPage - offset / kPage;
    for (uint64_t i = 0; i < num; ++i) shared(sums[i]).store(0, std::memory_order_relaxed);
}

Pages::Pages(uint64_t offset, uint64_t address, uint64_t nbytes, uint32_t* sums) {
    const uint64_t head = std::min((kPage - offset % kPage) % kPage, nbytes);
    offset_ = offset + head;
    address_ = address + head;
    num_ = (nbytes - head) / kPage;
    sums_ = sums + (head ? 1 : 0);
}

void Pages::store() const {
    uint32_t found[kAtOnce];
    for (uint64_t at = 0; at < num_; at += kAtOnce) {
        const uint64_t num = std::min(kAtOnce, num_ - at);
        page_sums(reinterpret_cast<const void*>(address_ + at * kPage), num, found);
        for (uint64_t i = 0; i < num; ++i)
            shared(sums_[at + i]).store(found[i], std::memory_order_relaxed);
    }
}

bool Pages::compare(int fd, uint64_t* wrong) const {
    uint32_t found[kAtOnce];
    for (uint64_t at = 0; at < num_; at += kAtOnce) {
        const uint64_t num = std::min(kAtOnce, num_ - at);
        page_sums(reinterpret_cast<const void*>(address_ + at * kPage), num, found);
        for (uint64_t i = 0; i < num; ++i) {
            const uint32_t known = shared(sums_[at + i]).load(std::memory_order_relaxed);
            if (known == found[i]) continue;
            *wrong = offset_ + (at + i) * kPage;
            if (known != 0 && !in_cache(fd, *wrong)) return false;
            shared(sums_[at + i]).store(found[i], std::memory_order_relaxed);
        }
    }
    return true;
}

}  // namespace zinf
