// A ring of io_uring through the kernel's own interface.  One thread uses it.
#pragma once

#include <linux/io_uring.h>

#include <cstdint>
#include <string>
#include <vector>

#include <sys/uio.h>

namespace zinf {

class Ring {
  public:
    // A completion that comes from wake() and stands for no block.
    static constexpr uint64_t kWoken = UINT64_MAX;

    // Throws std::system_error where the kernel refuses.
    explicit Ring(uint32_t depth);
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // Raise std::system_error with the reason unless blocks can be read and written.
    void check_operations() const;
    // Lock the buffers in memory: 0, or an errno.
    int register_buffers(const std::vector<iovec>& pieces);

    // Queue a read or write; `buffer` is that of a registered one, or -1.
    void queue(bool write, int fd, uint64_t address, uint32_t nbytes, uint64_t offset,
               int64_t buffer, uint64_t user_data);
    // Let wake() end a wait.
    void arm_wake();
    // From any thread.
    void wake();
    // Submit what is queued, and wait for one completion if asked.
    void enter(bool wait);
    // Take one completion; false if there is none.
    bool complete(uint64_t* user_data, int32_t* result);

  private:
    io_uring_sqe* next_entry();
    void unmap();

    int fd_ = -1;
    int event_ = -1;
    uint32_t queued_ = 0;
    bool armed_ = false;
    void* rings_ = nullptr;
    uint64_t rings_bytes_ = 0, entries_bytes_ = 0;
    io_uring_sqe* entries_ = nullptr;
    uint32_t *sq_tail_, *sq_mask_, *sq_array_, *cq_head_, *cq_tail_, *cq_mask_;
    io_uring_cqe* completions_;
};

// Why io_uring cannot be used on this machine, empty if it can; the errno goes to `code`.
std::string uring_refusal(int32_t* code);

}  // namespace zinf
