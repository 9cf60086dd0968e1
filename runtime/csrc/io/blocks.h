// How a request is cut into blocks: the native counterpart of runtime/blocks.py.
//
// Direct I/O wants the file offset, the memory address and the length to be whole pages.  Where
// all three are, a block goes straight to the memory of the request.  Where only the file side
// is, it goes through a buffer.  Where the file side is not, because the page at an edge belongs
// in part to other data, that edge goes through the page cache.
#pragma once

#include <cstdint>
#include <vector>

#include "zinf.h"

namespace zinf {

constexpr uint64_t kPage = 4096;

constexpr uint64_t page_aligned(uint64_t nbytes) { return (nbytes + kPage - 1) / kPage * kPage; }

enum class Route { kDirect, kBounce, kBuffered, kCopy };

// A piece of a request.  Unless the route is buffered or a copy, whole pages travel.
struct Block {
    uint32_t file;
    uint64_t offset;   // in that file; of a copy: the address of the source
    uint64_t address;
    uint64_t nbytes;
    Route route;
    uint32_t* sums;  // of its pages, the first one's first; null for none
};

// What the cuts depend on besides the spans.
struct Cuts {
    uint64_t block_bytes;
    uint64_t buffer_bytes;
    bool copies;  // from memory to memory
};

// Yields the blocks of a request one by one, in ascending order within each span.
class Cutter {
  public:
    Cutter(std::vector<zinf_io_span> spans, const Cuts& cuts);
    // Whether a block is left.
    bool has_next() const { return span_ < spans_.size(); }
    Block next();
    // Yield no more.
    void stop() { span_ = spans_.size(); }

  private:
    // A stretch of a span that is cut evenly and travels one way.
    struct Stretch {
        uint64_t start, end;
        Route route;
    };
    Stretch stretch() const;
    Route tail_route(const zinf_io_span& span, Route in_memory) const;
    void skip_empty();

    std::vector<zinf_io_span> spans_;
    Cuts cuts_;
    size_t span_ = 0;
    uint64_t position_ = 0;  // in the span
};

}  // namespace zinf
