// The C functions over programs: they check what callers give, and let nothing be thrown.
#include <cerrno>
#include <new>

#include "io/handle.h"
#include "stream/stream.h"

namespace {

bool can_run(const zinf_stream_program& program) {
    if (!zinf::makes_sense(program)) return false;
    for (uint64_t i = 0; i < program.num_requests; ++i) {
        const zinf_stream_request& of = program.requests[i];
        zinf_io_request request{};
        request.spans = program.spans + of.first_span;
        request.num_spans = of.num_spans;
        bool copies = of.channel == ZINF_IO_COPY_IN || of.channel == ZINF_IO_COPY_OUT;
        if (!copies) {
            request.files = program.files;
            request.num_files = static_cast<uint32_t>(program.num_files);
        }
        if (!zinf::is_sound(request, of.channel)) return false;
    }
    return true;
}

}  // namespace

extern "C" {

struct zinf_stream {
    zinf::Stream stream;
};

int32_t zinf_stream_create(zinf_io* io, zinf_pool* pool, const zinf_stream_program* program,
                           zinf_stream** stream) {
    if (!io || !program || !stream) return -EINVAL;
    try {
        if (!can_run(*program)) return -EINVAL;
        *stream = new zinf_stream{{io->engine, pool, *program}};
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
    return 0;
}

int32_t zinf_stream_extend(zinf_stream* stream, const zinf_stream_program* program) {
    if (!stream || !program) return -EINVAL;
    try {
        if (!can_run(*program)) return -EINVAL;
        return stream->stream.extend(*program);
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
}

int32_t zinf_stream_run(zinf_stream* stream, int64_t milliseconds,
                        zinf_stream_progress* progress) {
    int32_t code = -ENOMEM;
    try {
        code = stream->stream.run(milliseconds);
    } catch (const std::bad_alloc&) {
    }
    *progress = stream->stream.progress();
    return code;
}

void zinf_stream_destroy(zinf_stream* stream, zinf_stream_progress* progress) {
    stream->stream.stop();
    if (progress) *progress = stream->stream.progress();
    delete stream;
}
}
