// The threads of a channel, and the life of a block in one of them.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "io/engine.h"
#include "io/page_sums.h"
#include "io/uring.h"

namespace zinf {

namespace {

constexpr const char* kThreadNames[] = {"zinf-io-read", "zinf-io-write", "zinf-io-in",
                                        "zinf-io-out"};

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

int32_t Engine::start(Channel& channel) {
    bool on_file = channel.index == ZINF_IO_READ || channel.index == ZINF_IO_WRITE;
    if (on_file && engine_ == ZINF_IO_URING) start_ring(channel);
    uint32_t wanted = channel.ring ? 1 : channel.direction.depth;
    // Without the signals of the process: Python's handlers belong to its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int32_t error = 0;
    try {
        while (channel.threads.size() < wanted) {
            channel.threads.emplace_back(
                [this, &channel] { channel.ring ? serve_ring(channel) : serve(channel); });
            pthread_setname_np(channel.threads.back().native_handle(),
                               kThreadNames[channel.index]);
        }
    } catch (const std::system_error& failure) {
        // One thread is enough to get everything done.
        if (channel.threads.empty()) error = -failure.code().value();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return error;
}

void Engine::start_ring(Channel& channel) {
    try {
        channel.ring = std::make_unique<Ring>(channel.direction.depth);
        channel.ring->check_operations();
    } catch (const std::system_error& error) {
        channel.ring.reset();
        engine_ = ZINF_IO_THREADS;
        engine_reason_ = error.what();
    }
}

void Engine::serve(Channel& channel) {
    Job job;
    for (;;) {
        int32_t error = 0;
        {
            std::unique_lock hold(lock_);
            channel.work_there.wait(hold, [&] { return retired_ || !channel.idle(); });
            if (!take(channel, &job)) return;
            channel.buffer_free.wait(hold, [&] { return equip(channel, job, &error); });
        }
        uint64_t moved = 0;
        if (!error) {
            begin(job);
            bool over = false;
            while (!over) {
                int64_t result = prepare_call(job) ? blocking_call(job) : job.call.result;
                error = digest(job, result, &over);
            }
            if (!error) error = conclude(job);
            if (!error) moved = job.total;
        }
        finish(channel, job, error, moved);
    }
}

bool Engine::equip(Channel& channel, Job& job, int32_t* error) {
    job.route = job.block.route;
    bool on_file = job.route != Route::kCopy;
    if (on_file && (buffered_ || job.request->files[job.block.file].direct_fd < 0))
        job.route = Route::kBuffered;
    job.address = job.block.address;
    job.total = job.block.nbytes;
    if (job.route == Route::kDirect || job.route == Route::kBounce)
        job.total = page_aligned(job.total);
    if (job.route != Route::kBounce) return true;
    bool are_new = channel.buffers.held_bytes() == 0;
    if (!channel.buffers.map()) {
        *error = ENOMEM;
        return true;
    }
    if (are_new && channel.ring && options_.register_buffers) {
        int refusal = channel.ring->register_buffers(channel.buffers.pieces());
        channel.registered = refusal == 0;
        if (refusal) registered_reason_ = std::string("the kernel refuses: ") + strerror(refusal);
    }
    if (!channel.buffers.any_free()) return false;
    uint32_t buffer = channel.buffers.take();
    job.buffer = buffer;
    job.address = channel.buffers.address(buffer);
    return true;
}

void Engine::begin(Job& job) {
    if (job.request->channel != ZINF_IO_WRITE) return;
    if (job.block.sums) forget_sums(job.block.sums, job.block.offset, job.block.nbytes);
    if (job.route != Route::kBounce) return;
    std::memcpy(pointer(job.address), pointer(job.block.address), job.block.nbytes);
    // What an earlier block left in the rest of the page is not this request's.
    std::memset(pointer(job.address + job.block.nbytes), 0, job.total - job.block.nbytes);
}

bool Engine::prepare_call(Job& job) {
    const zinf_io_file none{-1, -1};
    const zinf_io_file& file =
        job.route == Route::kCopy ? none : job.request->files[job.block.file];
    // A short call may have left half a page over, which direct I/O cannot go on from.
    bool direct = (job.route == Route::kDirect || job.route == Route::kBounce) && !buffered_ &&
                  job.done % kPage == 0;
    job.call_fd = direct ? file.direct_fd : file.fd;
    job.call = {0, job.block.offset + job.done, job.total - job.done, 0, job.request->channel,
                direct};
    job.call.serial = ++calls_;
    if (zinf_io_fault fault = fault_) {
        fault(fault_context_, 0, &job.call);
        if (job.call.result < 0) return false;
    }
    return true;
}

int64_t Engine::blocking_call(const Job& job) {
    void* memory = pointer(job.address + job.done);
    auto offset = static_cast<off_t>(job.call.offset);
    ssize_t result = 0;
    switch (job.request->channel) {
        case ZINF_IO_READ:
            result = pread(job.call_fd, memory, job.call.nbytes, offset);
            break;
        case ZINF_IO_WRITE:
            result = pwrite(job.call_fd, memory, job.call.nbytes, offset);
            break;
        default:
            std::memmove(memory, pointer(job.call.offset), job.call.nbytes);
            result = static_cast<ssize_t>(job.call.nbytes);
    }
    return result < 0 ? -errno : result;
}

int32_t Engine::digest(Job& job, int64_t result, bool* over) {
    if (zinf_io_fault fault = fault_; fault && job.call.result == 0) {
        job.call.result = result;
        fault(fault_context_, 1, &job.call);
        result = job.call.result;
    }
    if (result == -EINTR || result == -EAGAIN) return 0;
    if (result == -EINVAL && job.call.direct) {
        go_buffered("the file system refused a call with O_DIRECT: EINVAL");
        return 0;
    }
    if (result > 0) job.done += static_cast<uint64_t>(result);
    *over = result <= 0 || job.done >= job.total;
    if (result < 0) return static_cast<int32_t>(-result);
    return result == 0 ? ENODATA : 0;  // the file has become shorter than what is in it
}

int32_t Engine::conclude(Job& job) {
    const bool reads = job.request->channel == ZINF_IO_READ;
    if (job.block.sums)
        if (int32_t error = check_sums(job)) return error;
    if (reads && job.route == Route::kBounce)
        std::memcpy(pointer(job.block.address), pointer(job.address), job.block.nbytes);
    return 0;
}

int32_t Engine::check_sums(Job& job) {
    // What has travelled: whole pages, unless it went through the page cache.
    const Pages pages(job.block.offset, job.address, job.total, job.block.sums);
    if (job.request->channel == ZINF_IO_WRITE) {
        pages.store();
        return 0;
    }
    uint64_t wrong = 0;
    if (pages.compare(job.request->files[job.block.file].fd, &wrong)) return 0;
    job.block.offset = wrong;
    job.block.nbytes = kPage;
    return EBADMSG;
}

}  // namespace zinf
