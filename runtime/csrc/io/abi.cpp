// The C functions over the engine: they check what callers give, and let nothing be thrown.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>
#include <system_error>

#include "io/handle.h"
#include "io/uring.h"

namespace {

constexpr uint64_t kMaxBlock = uint64_t{1} << 30;

bool is_pages(uint64_t nbytes) { return nbytes != 0 && nbytes % zinf::kPage == 0; }

bool is_sound(const zinf_io_direction& direction) {
    return direction.depth >= 1 && direction.depth <= 256 && direction.num_buffers >= 1 &&
           direction.num_buffers <= 256 && is_pages(direction.block_bytes) &&
           direction.block_bytes <= kMaxBlock && is_pages(direction.buffer_bytes) &&
           direction.buffer_bytes <= kMaxBlock;
}

}  // namespace

namespace zinf {

bool is_sound(const zinf_io_request& request, int32_t channel) {
    if (channel < 0 || channel >= ZINF_IO_CHANNELS) return false;
    if (request.num_spans && !request.spans) return false;
    for (uint32_t i = 0; i < request.num_spans; ++i) {
        const zinf_io_span& span = request.spans[i];
        if (span.offset + span.nbytes < span.offset || span.address + span.nbytes < span.address)
            return false;
    }
    if (channel == ZINF_IO_COPY_IN || channel == ZINF_IO_COPY_OUT) return request.num_files == 0;
    if (!request.files || request.num_files == 0) return false;
    for (uint32_t i = 0; i < request.num_spans; ++i) {
        const zinf_io_span& span = request.spans[i];
        if (span.memory_room < span.nbytes || span.file_room < span.nbytes) return false;
        if (span.file >= request.num_files) return false;
    }
    return true;
}

}  // namespace zinf

extern "C" {

int32_t zinf_io_probe_uring(char* reason, uint64_t reason_bytes) {
    int32_t code = 0;
    std::string why = zinf::uring_refusal(&code);
    if (reason && reason_bytes) std::snprintf(reason, reason_bytes, "%s", why.c_str());
    return -code;
}

int32_t zinf_io_create(const zinf_io_options* options, zinf_io** io) {
    if (!options || !io || !is_sound(options->read) || !is_sound(options->write)) return -EINVAL;
    if (options->engine != ZINF_IO_URING && options->engine != ZINF_IO_THREADS) return -EINVAL;
    try {
        *io = new zinf_io{zinf::Engine(*options)};
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
    return 0;
}

void zinf_io_destroy(zinf_io* io) { delete io; }

void zinf_io_retire(zinf_io* io) { io->engine.retire(); }

int32_t zinf_io_submit(zinf_io* io, int32_t channel, int32_t urgent,
                       const zinf_io_request* request, uint64_t* ticket) {
    if (!io || !request || !ticket || !zinf::is_sound(*request, channel)) return -EINVAL;
    try {
        return io->engine.submit(channel, urgent != 0, *request, ticket);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

int32_t zinf_io_wait(zinf_io* io, uint64_t ticket, int64_t milliseconds) {
    return io->engine.wait(ticket, milliseconds);
}

int32_t zinf_io_cancel(zinf_io* io, uint64_t ticket) { return io->engine.cancel(ticket); }

int32_t zinf_io_reap(zinf_io* io, zinf_io_result* results, int32_t capacity) {
    return io->engine.reap(results, capacity);
}

int32_t zinf_io_get_status(zinf_io* io, zinf_io_status* status) {
    if (!io || !status) return -EINVAL;
    io->engine.status(status);
    return 0;
}

void zinf_io_set_fault(zinf_io* io, zinf_io_fault fault, void* context) {
    io->engine.set_fault(fault, context);
}
}
