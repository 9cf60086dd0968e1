// CRC-32C (Castagnoli), with the processor's instruction for it where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zinf {

uint32_t crc32c(uint32_t crc, const void* data, size_t nbytes);
uint32_t crc32c_portable(uint32_t crc, const void* data, size_t nbytes);

// Sums of whole pages, as zinf_page_sums() words them.
void page_sums(const void* data, size_t num_pages, uint32_t* sums);

}  // namespace zinf
