#include "io/blocks.h"

#include <algorithm>
#include <utility>

namespace zinf {

namespace {

// Memory is copied in blocks of this size, so that an urgent copy soon gets its turn.
constexpr uint64_t kCopyBytes = uint64_t{4} << 20;

}  // namespace

Cutter::Cutter(std::vector<zinf_io_span> spans, const Cuts& cuts)
    : spans_(std::move(spans)), cuts_(cuts) {
    skip_empty();
}

void Cutter::skip_empty() {
    while (has_next() && position_ == spans_[span_].nbytes) {
        ++span_;
        position_ = 0;
    }
}

Route Cutter::tail_route(const zinf_io_span& span, Route in_memory) const {
    uint64_t end = span.offset + span.nbytes;
    uint64_t whole_bytes = page_aligned(end) - span.offset;
    if (whole_bytes > span.file_room) return Route::kBuffered;
    if (whole_bytes > span.memory_room) return Route::kBounce;
    return in_memory;
}

Cutter::Stretch Cutter::stretch() const {
    const zinf_io_span& span = spans_[span_];
    if (cuts_.copies) return {0, span.nbytes, Route::kCopy};
    uint64_t head = std::min((kPage - span.offset % kPage) % kPage, span.nbytes);
    if (position_ < head) return {0, head, Route::kBuffered};
    Route in_memory = (span.address + head) % kPage ? Route::kBounce : Route::kDirect;
    Route at_tail = tail_route(span, in_memory);
    uint64_t whole_end = span.nbytes;
    if (at_tail != in_memory) whole_end -= (span.nbytes - head) % kPage;
    if (position_ < whole_end) return {head, whole_end, in_memory};
    return {whole_end, span.nbytes, at_tail};
}

Block Cutter::next() {
    const zinf_io_span& span = spans_[span_];
    Stretch part = stretch();
    uint64_t limit = part.route == Route::kCopy     ? kCopyBytes
                     : part.route == Route::kBounce ? cuts_.buffer_bytes
                                                    : cuts_.block_bytes;
    uint64_t offset = span.offset + position_;
    Block block{span.file, offset, span.address + position_,
                std::min(limit, part.end - position_), part.route, nullptr};
    if (span.sums) block.sums = span.sums + (offset / kPage - span.offset / kPage);
    position_ += block.nbytes;
    skip_empty();
    return block;
}

}  // namespace zinf
