// The page-aligned buffers of one direction, on huge pages where they are large enough.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <vector>

namespace zinf {

// Mapped with the first buffer that is taken; not safe for several threads at once.
class Buffers {
  public:
    Buffers(uint32_t num_buffers, uint64_t buffer_bytes)
        : num_buffers_(num_buffers), buffer_bytes_(buffer_bytes) {}
    ~Buffers();
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;

    // Map them unless they are; false if there is no memory.
    bool map();
    bool any_free() const { return !free_.empty(); }
    uint32_t take();
    void give(uint32_t buffer) { free_.push_back(buffer); }
    uint64_t address(uint32_t buffer) const { return address_ + buffer * buffer_bytes_; }
    // The bytes that are mapped now.
    uint64_t held_bytes() const { return address_ ? num_buffers_ * buffer_bytes_ : 0; }
    std::vector<iovec> pieces() const;

  private:
    uint32_t num_buffers_;
    uint64_t buffer_bytes_;
    uint64_t address_ = 0;
    uint64_t reserved_at_ = 0, reserved_bytes_ = 0;
    std::vector<uint32_t> free_;
};

}  // namespace zinf
