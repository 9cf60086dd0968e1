// Sums of the whole pages of a block, beside the known ones of a table.
#pragma once

#include <cstdint>

namespace zinf {

// Let the sums of all pages that the bytes touch be unknown.
void forget_sums(uint32_t* sums, uint64_t offset, uint64_t nbytes);

// The pages that lie wholly within `nbytes` from `offset` of a file on, held at `address`; `sums`
// begins with that of the page that holds the first byte.
class Pages {
  public:
    Pages(uint64_t offset, uint64_t address, uint64_t nbytes, uint32_t* sums);

    void store() const;
    // Whether every page has its known sum; of those that have none, and of those that are in the
    // page cache of `fd`, it is stored.  Else the offset of the first wrong page is set.
    bool compare(int fd, uint64_t* wrong) const;

  private:
    uint64_t offset_, address_, num_;
    uint32_t* sums_;
};

}  // namespace zinf
