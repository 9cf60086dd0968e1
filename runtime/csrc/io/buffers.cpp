#include "io/buffers.h"

#include <sys/mman.h>

namespace zinf {

namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

Buffers::~Buffers() {
    if (reserved_at_) munmap(reinterpret_cast<void*>(reserved_at_), reserved_bytes_);
}

bool Buffers::map() {
    if (address_) return true;
    uint64_t nbytes = num_buffers_ * buffer_bytes_;
    bool huge = nbytes >= kHugePage;
    // Addresses beyond the buffers are reserved only: nothing is ever written there.
    reserved_bytes_ = nbytes + (huge ? kHugePage : 0);
    void* at = mmap(nullptr, reserved_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return false;
    reserved_at_ = address_ = reinterpret_cast<uint64_t>(at);
    if (huge) {
        address_ = (reserved_at_ + kHugePage - 1) / kHugePage * kHugePage;
        // Whole huge pages only: a last one in part would take memory that nobody counts.
        madvise(reinterpret_cast<void*>(address_), nbytes / kHugePage * kHugePage,
                MADV_HUGEPAGE);
    }
    for (uint32_t i = num_buffers_; i > 0; --i) free_.push_back(i - 1);
    return true;
}

uint32_t Buffers::take() {
    uint32_t buffer = free_.back();
    free_.pop_back();
    return buffer;
}

std::vector<iovec> Buffers::pieces() const {
    std::vector<iovec> pieces;
    for (uint32_t i = 0; i < num_buffers_; ++i)
        pieces.push_back({reinterpret_cast<void*>(address(i)), buffer_bytes_});
    return pieces;
}

}  // namespace zinf
