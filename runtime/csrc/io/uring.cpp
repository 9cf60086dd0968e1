#include "io/uring.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace zinf {

namespace {

// The numbers are the same on every architecture; older C libraries lack the names.
constexpr long kSetup = 425, kEnter = 426, kRegister = 427;

[[noreturn]] void refuse(const char* what, int code) {
    throw std::system_error(code, std::generic_category(), what);
}

template <typename T>
T* at(void* base, uint32_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}

uint32_t load_acquire(const uint32_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

void store_release(uint32_t* word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

}  // namespace

Ring::Ring(uint32_t depth) {
    io_uring_params params{};
    // One entry more than blocks, for the event that wakes the thread.
    fd_ = static_cast<int>(syscall(kSetup, depth + 1, &params));
    if (fd_ < 0) refuse("io_uring_setup", errno);
    // Since Linux 5.4, older than the operations that are needed.
    if (!(params.features & IORING_FEAT_SINGLE_MMAP)) {
        close(fd_);
        refuse("io_uring_setup: rings in two pieces", ENOSYS);
    }
    uint64_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(uint32_t);
    uint64_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
    rings_bytes_ = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
    constexpr int kAccess = PROT_READ | PROT_WRITE, kFlags = MAP_SHARED | MAP_POPULATE;
    void* rings = mmap(nullptr, rings_bytes_, kAccess, kFlags, fd_, IORING_OFF_SQ_RING);
    if (rings != MAP_FAILED) rings_ = rings;
    void* entries = mmap(nullptr, entries_bytes_, kAccess, kFlags, fd_, IORING_OFF_SQES);
    if (entries != MAP_FAILED) entries_ = static_cast<io_uring_sqe*>(entries);
    event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!rings_ || !entries_ || event_ < 0) {
        int code = errno;
        unmap();
        refuse("cannot map the rings of io_uring", code);
    }
    // A forked child has no business here, and its copy would keep the pages.
    madvise(rings_, rings_bytes_, MADV_DONTFORK);
    madvise(entries_, entries_bytes_, MADV_DONTFORK);
    sq_tail_ = at<uint32_t>(rings_, params.sq_off.tail);
    sq_mask_ = at<uint32_t>(rings_, params.sq_off.ring_mask);
    sq_array_ = at<uint32_t>(rings_, params.sq_off.array);
    cq_head_ = at<uint32_t>(rings_, params.cq_off.head);
    cq_tail_ = at<uint32_t>(rings_, params.cq_off.tail);
    cq_mask_ = at<uint32_t>(rings_, params.cq_off.ring_mask);
    completions_ = at<io_uring_cqe>(rings_, params.cq_off.cqes);
}

Ring::~Ring() { unmap(); }

void Ring::unmap() {
    if (entries_) munmap(entries_, entries_bytes_);
    if (rings_) munmap(rings_, rings_bytes_);
    if (event_ >= 0) close(event_);
    if (fd_ >= 0) close(fd_);
}

void Ring::check_operations() const {
    constexpr uint8_t kNeeded[] = {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED,
                                   IORING_OP_WRITE_FIXED, IORING_OP_POLL_ADD};
    alignas(io_uring_probe) char space[sizeof(io_uring_probe) + 256 * sizeof(io_uring_probe_op)];
    std::memset(space, 0, sizeof space);
    auto* probe = reinterpret_cast<io_uring_probe*>(space);
    if (syscall(kRegister, fd_, IORING_REGISTER_PROBE, probe, 256) < 0)
        refuse("the kernel's io_uring is older than its reads and writes", errno);
    for (uint8_t operation : kNeeded)
        if (operation > probe->last_op ||
            !(probe->ops[operation].flags & IO_URING_OP_SUPPORTED))
            refuse("the kernel's io_uring cannot read or write", ENOSYS);
}

int Ring::register_buffers(const std::vector<iovec>& pieces) {
    long result = syscall(kRegister, fd_, IORING_REGISTER_BUFFERS, pieces.data(), pieces.size());
    return result < 0 ? errno : 0;
}

io_uring_sqe* Ring::next_entry() {
    uint32_t index = (*sq_tail_ + queued_) & *sq_mask_;
    sq_array_[index] = index;
    io_uring_sqe* entry = &entries_[index];
    std::memset(entry, 0, sizeof *entry);
    ++queued_;
    return entry;
}

void Ring::queue(bool write, int fd, uint64_t address, uint32_t nbytes, uint64_t offset,
                 int64_t buffer, uint64_t user_data) {
    io_uring_sqe* entry = next_entry();
    if (buffer < 0) {
        entry->opcode = write ? IORING_OP_WRITE : IORING_OP_READ;
    } else {
        entry->opcode = write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
        entry->buf_index = static_cast<uint16_t>(buffer);
    }
    entry->fd = fd;
    entry->addr = address;
    entry->len = nbytes;
    entry->off = offset;
    entry->user_data = user_data;
}

void Ring::arm_wake() {
    if (armed_) return;
    io_uring_sqe* entry = next_entry();
    // A poll and no read: it touches no memory if it outlives the ring.
    entry->opcode = IORING_OP_POLL_ADD;
    entry->fd = event_;
    entry->poll_events = POLLIN;
    entry->user_data = kWoken;
    armed_ = true;
}

void Ring::wake() {
    uint64_t one = 1;
    // It can only fail when the counter is full, and then the wait ends anyway.
    [[maybe_unused]] ssize_t written = write(event_, &one, sizeof one);
}

void Ring::enter(bool wait) {
    store_release(sq_tail_, *sq_tail_ + queued_);
    uint32_t left = queued_;
    queued_ = 0;
    for (;;) {
        long entered = syscall(kEnter, fd_, left, wait ? 1 : 0,
                               wait ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
        if (entered >= 0) {
            left -= static_cast<uint32_t>(entered);
            if (left == 0) return;
        } else if (errno == EBUSY || errno == EAGAIN || errno == ENOMEM) {
            // The kernel is short of something for now.  Completions that are there come first;
            // what is left goes with the next call.
            if (load_acquire(cq_tail_) != *cq_head_) break;
            usleep(1000);
        } else if (errno != EINTR) {
            refuse("io_uring_enter", errno);
        }
    }
    // Entries that the kernel has not taken stay in the ring: count them again.
    store_release(sq_tail_, *sq_tail_ - left);
    queued_ = left;
}

bool Ring::complete(uint64_t* user_data, int32_t* result) {
    uint32_t head = *cq_head_;
    if (head == load_acquire(cq_tail_)) return false;
    const io_uring_cqe& completion = completions_[head & *cq_mask_];
    *user_data = completion.user_data;
    *result = completion.res;
    store_release(cq_head_, head + 1);
    if (*user_data == kWoken) {
        uint64_t count = 0;
        [[maybe_unused]] ssize_t taken = read(event_, &count, sizeof count);
        armed_ = false;
    }
    return true;
}

std::string uring_refusal(int32_t* code) {
    try {
        Ring(1).check_operations();
    } catch (const std::system_error& error) {
        *code = error.code().value();
        std::string why = error.what();
        if (*code == EPERM || *code == ENOSYS || *code == EACCES)
            why += "; a container's seccomp profile or kernel.io_uring_disabled may forbid it";
        return why;
    }
    *code = 0;
    return "";
}

}  // namespace zinf
