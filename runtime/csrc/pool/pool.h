// A pool of threads that share the chunks of one job at a time.
//
// Each thread owns a range of chunks and takes them from its front; one that has none left
// steals the back half of the largest range it finds.  Which thread runs a chunk therefore
// varies, so what a chunk computes must depend on its number alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "zinf.h"

namespace zinf {

// CPUs that this process may run on at once: its affinity mask and its control group's quota.
int32_t available_cpus();

// The chunks that one thread has left, as one atomic word: first and end, 32 bits each.
class alignas(64) ChunkRange {
  public:
    void set(uint32_t first, uint32_t end) { word_.store(pack(first, end)); }
    // Take the first chunk; false if none is left.
    bool take(uint32_t* chunk);
    // Take the back half, at least one chunk; false if none is left.
    bool steal(uint32_t* first, uint32_t* end);
    uint32_t left() const;

  private:
    static uint64_t pack(uint32_t first, uint32_t end) { return uint64_t{end} << 32 | first; }
    std::atomic<uint64_t> word_{0};
};

class Pool {
  public:
    explicit Pool(const zinf_pool_options& options);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int32_t size() const { return size_; }
    void run(uint64_t num_chunks, zinf_chunk chunk, void* context);

  private:
    // What threads share; a forked child leaves its parent's behind, whose locks it cannot trust.
    struct Crew;
    static void serve(Crew& crew, int32_t index);
    static void work(Crew& crew, int32_t index);

    Crew& crew_of_this_process();
    void start(Crew& crew);

    int32_t size_;
    bool pin_;
    std::atomic<Crew*> crew_;
};

}  // namespace zinf
