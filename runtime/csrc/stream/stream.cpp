#include "stream/stream.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "io/engine.h"

namespace zinf {

namespace {

using Clock = std::chrono::steady_clock;

bool is_copy(int32_t channel) {
    return channel == ZINF_IO_COPY_IN || channel == ZINF_IO_COPY_OUT;
}

// Whether `num` elements from `first` on lie within an array of `size`.
bool lies_within(uint64_t first, uint64_t num, uint64_t size) {
    return first <= size && num <= size - first;
}

}  // namespace

bool makes_sense(const zinf_stream_program& program) {
    for (uint64_t i = 0; i < program.num_requests; ++i) {
        const zinf_stream_request& request = program.requests[i];
        bool sensible = request.channel >= 0 && request.channel < ZINF_IO_CHANNELS &&
                        lies_within(request.first_span, request.num_spans, program.num_spans) &&
                        (is_copy(request.channel) || program.num_files >= 1);
        if (!sensible) return false;
    }
    for (uint64_t i = 0; i < program.num_updates; ++i) {
        const zinf_stream_update& update = program.updates[i];
        if (!update.call || update.num_tensors < 0 ||
            !lies_within(update.first_tensor, static_cast<uint64_t>(update.num_tensors),
                         program.num_tensors))
            return false;
    }
    std::vector<bool> started(program.num_requests);
    for (uint64_t i = 0; i < program.num_steps; ++i) {
        const zinf_stream_step& step = program.steps[i];
        switch (step.kind) {
            case ZINF_STREAM_START:
                if (step.index >= program.num_requests || started[step.index]) return false;
                started[step.index] = true;
                break;
            case ZINF_STREAM_AWAIT:
                if (step.index >= program.num_requests || !started[step.index]) return false;
                break;
            case ZINF_STREAM_UPDATE:
                if (step.index >= program.num_updates) return false;
                break;
            case ZINF_STREAM_VACATE:
                if (step.index >= program.num_vacancies) return false;
                break;
            case ZINF_STREAM_RETURN:
                break;
            default:
                return false;
        }
    }
    return true;
}

Stream::Stream(Engine& engine, zinf_pool* pool, const zinf_stream_program& program)
    : engine_(engine), pool_(pool), program_(program), flights_(program.num_requests) {}

Stream::~Stream() { stop(); }

int32_t Stream::run(int64_t milliseconds) {
    const Clock::time_point end = Clock::now() + std::chrono::milliseconds(milliseconds);
    const uint64_t first = progress_.num_done;
    while (progress_.num_done < program_.num_steps) {
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
        // However short the slice, and the machine's time for it, something is done.
        if (left <= 0 && progress_.num_done > first) return -ETIMEDOUT;
        const zinf_stream_step& step = program_.steps[progress_.num_done];
        int32_t error = 0;
        switch (step.kind) {
            case ZINF_STREAM_START:
                error = start(step.index);
                break;
            case ZINF_STREAM_AWAIT:
                error = await(step.index, std::max<int64_t>(left, 1));
                break;
            case ZINF_STREAM_UPDATE: {
                const zinf_stream_update& update = program_.updates[step.index];
                error = zinf_optim_step(update.call, program_.tensors + update.first_tensor,
                                        update.num_tensors, pool_);
                // A gradient that is not finite is the caller's to look for, before any update.
                if (error > 0) error = -EINVAL;
                break;
            }
            case ZINF_STREAM_VACATE: {
                const zinf_stream_vacancy& gone = program_.vacancies[step.index];
                if (madvise(reinterpret_cast<void*>(gone.address), gone.nbytes, MADV_DONTNEED))
                    error = -errno;
                break;
            }
            case ZINF_STREAM_RETURN:
                ++progress_.num_done;
                return 1;
        }
        if (error) return error;
        ++progress_.num_done;
    }
    return 0;
}

int32_t Stream::extend(const zinf_stream_program& program) {
    if (program.num_steps < program_.num_steps || program.num_requests < flights_.size())
        return -EINVAL;
    flights_.resize(program.num_requests);
    program_ = program;
    return 0;
}

void Stream::stop() {
    for (const Flight& flight : flights_)
        if (flight.under_way) engine_.cancel(flight.ticket);
    for (uint32_t i = 0; i < flights_.size(); ++i) {
        if (!flights_[i].under_way) continue;
        engine_.wait(flights_[i].ticket, -1);
        land(i);
    }
}

int32_t Stream::start(uint32_t index) {
    const zinf_stream_request& of = program_.requests[index];
    Flight& flight = flights_[index];
    zinf_io_request request{};
    request.spans = program_.spans + of.first_span;
    request.num_spans = of.num_spans;
    if (!is_copy(of.channel)) {
        request.files = program_.files;
        request.num_files = static_cast<uint32_t>(program_.num_files);
    }
    const int32_t error =
        engine_.submit(of.channel, false, request, &flight.ticket, &flight.result);
    flight.under_way = error == 0;
    return error;
}

int32_t Stream::await(uint32_t index, int64_t milliseconds) {
    Flight& flight = flights_[index];
    const zinf_stream_request& of = program_.requests[index];
    if (flight.under_way) {
        const Clock::time_point since = Clock::now();
        const int32_t error = engine_.wait(flight.ticket, milliseconds);
        const auto waited = std::chrono::nanoseconds(Clock::now() - since).count();
        progress_.waited_ns[of.channel] += static_cast<uint64_t>(waited);
        if (error) return error;
        land(index);
    }
    return -flight.result.error;
}

void Stream::land(uint32_t index) {
    Flight& flight = flights_[index];
    flight.under_way = false;
    progress_.moved_bytes[program_.requests[index].channel] += flight.result.moved_bytes;
    const bool is_first = progress_.result.error == 0;
    if (flight.result.error && is_first) {
        progress_.result = flight.result;
        progress_.failed_request = index;
    }
}

}  // namespace zinf
