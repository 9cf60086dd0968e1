// The queues: who waits, what starts next, how requests end.
#include "io/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "io/uring.h"

namespace zinf {

namespace {

constexpr zinf_io_direction kCopies{1, 1, kPage, kPage};

void set_text(char (&to)[160], const std::string& from) {
    std::snprintf(to, sizeof to, "%s", from.c_str());
}

}  // namespace

Engine::Channel::Channel(int32_t index, const zinf_io_direction& direction)
    : index(index), direction(direction), buffers(direction.num_buffers, direction.buffer_bytes) {}

Engine::Channel::~Channel() = default;

Engine::Engine(const zinf_io_options& options)
    : options_(options), pid_(getpid()), engine_(options.engine), buffered_(options.buffered != 0) {
    if (buffered_) buffered_reason_ = "it was asked for";
    for (int32_t i = 0; i < ZINF_IO_CHANNELS; ++i) {
        const zinf_io_direction& direction = i == ZINF_IO_READ    ? options.read
                                             : i == ZINF_IO_WRITE ? options.write
                                                                  : kCopies;
        channels_[i] = std::make_unique<Channel>(i, direction);
    }
    if (!options.register_buffers) registered_reason_ = "it was not asked for";
    else if (engine_ != ZINF_IO_URING) registered_reason_ = "only io_uring can register them";
    else registered_reason_ = "no buffer has been used yet";
}

Engine::~Engine() {
    retire();
    for (auto& channel : channels_)
        for (std::thread& thread : channel->threads) thread.join();
}

void Engine::retire() {
    std::lock_guard hold(lock_);
    retired_ = true;
    for (auto& channel : channels_) {
        channel->work_there.notify_all();
        if (channel->in_ring) channel->ring->wake();
    }
}

int32_t Engine::submit(int32_t channel_index, bool urgent, const zinf_io_request& asked,
                       uint64_t* ticket, zinf_io_result* taker) {
    bool copies = channel_index == ZINF_IO_COPY_IN || channel_index == ZINF_IO_COPY_OUT;
    Channel& channel = *channels_[channel_index];
    Cuts cuts{channel.direction.block_bytes, channel.direction.buffer_bytes, copies};
    std::vector<zinf_io_file> files(asked.files, asked.files + asked.num_files);
    std::vector<zinf_io_span> spans(asked.spans, asked.spans + asked.num_spans);
    std::lock_guard hold(lock_);
    if (retired_) return -ESHUTDOWN;
    auto request = std::unique_ptr<Request>(
        new Request{++last_ticket_, channel_index, urgent, std::move(files), taker,
                    Cutter(std::move(spans), cuts)});
    request->result.ticket = *ticket = request->ticket;
    if (!request->cutter.has_next()) {
        report(*request);
        return 0;
    }
    if (channel.threads.empty())
        if (int32_t error = start(channel)) return error;
    (urgent ? channel.urgent : channel.planned).push_back(request.get());
    active_.emplace(request->ticket, std::move(request));
    channel.work_there.notify_all();
    if (channel.in_ring) channel.ring->wake();
    return 0;
}

int32_t Engine::wait(uint64_t ticket, int64_t milliseconds) {
    std::unique_lock hold(lock_);
    auto is_over = [&] { return active_.find(ticket) == active_.end(); };
    if (milliseconds < 0) {
        over_.wait(hold, is_over);
        return 0;
    }
    return over_.wait_for(hold, std::chrono::milliseconds(milliseconds), is_over) ? 0 : -ETIMEDOUT;
}

int32_t Engine::cancel(uint64_t ticket) {
    std::lock_guard hold(lock_);
    auto found = active_.find(ticket);
    if (found == active_.end()) return -ENOENT;
    Request& request = *found->second;
    if (!request.cutter.has_next()) return -EALREADY;
    drop_queued(*channels_[request.channel], request);
    if (!request.result.error) request.result.error = ECANCELED;
    if (request.under_way == 0) end(request);
    return 0;
}

int32_t Engine::reap(zinf_io_result* results, int32_t capacity) {
    std::lock_guard hold(lock_);
    auto count = std::min<size_t>(finished_.size(), static_cast<size_t>(std::max(capacity, 0)));
    std::copy_n(finished_.begin(), count, results);
    finished_.erase(finished_.begin(), finished_.begin() + static_cast<ptrdiff_t>(count));
    return static_cast<int32_t>(count);
}

void Engine::status(zinf_io_status* status) {
    std::lock_guard hold(lock_);
    *status = {};
    status->engine = engine_;
    status->buffered = buffered_;
    for (auto& channel : channels_) {
        status->num_threads += static_cast<int32_t>(channel->threads.size());
        status->buffer_bytes += channel->buffers.held_bytes();
        status->registered |= channel->registered;
    }
    status->num_active = active_.size();
    set_text(status->engine_reason, engine_reason_);
    set_text(status->buffered_reason, buffered_reason_);
    set_text(status->registered_reason, status->registered ? "" : registered_reason_);
}

void Engine::set_fault(zinf_io_fault fault, void* context) {
    fault_context_ = context;
    fault_ = fault;
}

bool Engine::take(Channel& channel, Job* job) {
    if (channel.idle()) return false;
    std::deque<Request*>& queue = channel.queue();
    Request& request = *queue.front();
    *job = Job{};
    job->request = &request;
    job->block = request.cutter.next();
    ++request.under_way;
    if (!request.cutter.has_next()) queue.pop_front();
    return true;
}

void Engine::finish(Channel& channel, Job& job, int32_t error, uint64_t moved_bytes) {
    std::lock_guard hold(lock_);
    if (job.buffer >= 0) {
        channel.buffers.give(static_cast<uint32_t>(job.buffer));
        channel.buffer_free.notify_one();
    }
    Request& request = *job.request;
    --request.under_way;
    request.result.moved_bytes += moved_bytes;
    if (error) {
        drop_queued(channel, request);
        if (!request.result.error || request.result.error == ECANCELED) {
            request.result.error = error;
            request.result.file = job.block.file;
            request.result.offset = job.block.offset;
            request.result.nbytes = job.block.nbytes;
        }
    }
    if (request.under_way == 0 && !request.cutter.has_next()) end(request);
}

void Engine::drop_queued(Channel& channel, Request& request) {
    if (!request.cutter.has_next()) return;
    std::deque<Request*>& queue = request.urgent ? channel.urgent : channel.planned;
    queue.erase(std::find(queue.begin(), queue.end(), &request));
    request.cutter.stop();
}

void Engine::report(const Request& request) {
    if (request.taker) *request.taker = request.result;
    else finished_.push_back(request.result);
}

void Engine::end(Request& request) {
    report(request);
    active_.erase(request.ticket);  // which frees it
    over_.notify_all();
}

void Engine::go_buffered(const char* reason) {
    std::lock_guard hold(lock_);
    if (!buffered_.exchange(true)) buffered_reason_ = reason;
}

}  // namespace zinf
