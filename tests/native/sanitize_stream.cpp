// Drives programs of the library through its C interface, to be built with sanitizers.
// Exits with 0 when all went well; says what did not otherwise.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "zinf_stream.h"

namespace {

constexpr uint64_t kPage = 4096, kBuckets = 12, kBucketPages = 3, kWindow = 3;
constexpr int64_t kNumel = kPage / 4;

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

std::atomic<uint32_t> fault_state{1};

// Interruptions and short transfers now and then, and errors where they are asked for.
void misbehave(void* context, int32_t after, zinf_io_call* call) {
    const uint32_t dice = fault_state.fetch_add(2654435761u) >> 24;
    if (after) return;
    if (context && dice < 6) call->result = -EIO;
    else if (dice < 40) call->result = -EINTR;
    else if (dice < 80 && call->nbytes > kPage) call->nbytes = kPage;
}

// A window of slots with a parameter, a momentum and a gradient each.
struct Program {
    std::vector<zinf_stream_step> steps;
    std::vector<zinf_stream_request> requests;
    std::vector<zinf_io_span> spans;
    std::vector<zinf_stream_update> updates;
    std::vector<zinf_optim_tensor> tensors;
    zinf_optim_call call{};
    zinf_io_file file{};
    std::vector<uint32_t> sums;  // of every page of the file

    Program(const zinf_io_file& pair, unsigned char* memory)
        : file(pair), sums(kBuckets * kBucketPages) {
        call.kind = ZINF_OPTIM_SGD;
        call.flags = ZINF_OPTIM_MOMENTUM;
        call.isa = -1;
        call.param_type = call.grad_type = call.state_type[0] = ZINF_TYPE_FP32;
        call.grad_divisor = call.grad_factor = call.clip_factor = call.decay = 1.0f;
        call.weight1 = 1.0f;
        call.momentum = 0.5f;
        for (uint64_t bucket = 0; bucket < kBuckets; ++bucket) {
            if (bucket >= kWindow) step(ZINF_STREAM_AWAIT, written(bucket - kWindow));
            unsigned char* const slot = memory + bucket % kWindow * kBucketPages * kPage;
            request(ZINF_IO_READ, bucket, slot, kBucketPages);
            request(ZINF_IO_WRITE, bucket, slot, 2);
            step(ZINF_STREAM_START, written(bucket) - 1);
            if (bucket) compute(bucket - 1);
            zinf_optim_tensor tensor{};
            tensor.param = slot;
            tensor.state[0] = slot + kPage;
            tensor.grad = slot + 2 * kPage;
            tensor.numel = tensor.whole_vectors = kNumel;
            tensor.step_size = 1.0f;
            tensors.push_back(tensor);
        }
        compute(kBuckets - 1);
        for (uint64_t i = 1; i <= kWindow; ++i) step(ZINF_STREAM_AWAIT, written(kBuckets - i));
        for (uint64_t i = 0; i < kBuckets; ++i) updates.push_back({&call, i, 1});
    }

    static uint64_t written(uint64_t bucket) { return 2 * bucket + 1; }

    void step(int32_t kind, uint64_t index) {
        steps.push_back({kind, static_cast<uint32_t>(index)});
    }

    void request(int32_t channel, uint64_t bucket, unsigned char* slot, uint64_t pages) {
        requests.push_back({channel, 1, spans.size()});
        const uint64_t nbytes = pages * kPage;
        uint32_t* const own = sums.data() + bucket * kBucketPages;
        spans.push_back({bucket * kBucketPages * kPage, reinterpret_cast<uint64_t>(slot), nbytes,
                         nbytes, nbytes, own, 0, 0});
    }

    void compute(uint64_t bucket) {
        step(ZINF_STREAM_AWAIT, written(bucket) - 1);
        if (bucket % 5 == 4) step(ZINF_STREAM_RETURN, 0);
        step(ZINF_STREAM_UPDATE, bucket);
        step(ZINF_STREAM_START, written(bucket));
    }

    zinf_stream_program view() const {
        return {steps.data(),   requests.data(), spans.data(),  updates.data(),
                tensors.data(), nullptr,         &file,         steps.size(),
                requests.size(), spans.size(),   updates.size(), tensors.size(),
                0,              1};
    }
};

void run(zinf_io* io, zinf_pool* pool, const zinf_io_file& file, int how) {
    const uint64_t nbytes = kWindow * kBucketPages * kPage;
    void* const memory =
        mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "memory");
    const Program program(file, static_cast<unsigned char*>(memory));
    const zinf_stream_program view = program.view();
    zinf_stream* stream = nullptr;
    zinf_stream_program head = view;
    head.num_steps = view.num_steps / 2;
    head.num_requests = view.num_requests;
    check(zinf_stream_create(io, pool, &head, &stream) == 0, "a program is taken");
    zinf_stream_progress progress{};
    for (int32_t half = 1; how == 0 && (half == 1 || half == -ETIMEDOUT);)
        half = zinf_stream_run(stream, 1, &progress);
    check(zinf_stream_extend(stream, &view) == 0, "a program is made longer");
    int32_t code = 1;
    // Slices of a millisecond; some programs are given up after a few of them.
    for (int slice = 0; code == 1 || code == -ETIMEDOUT; ++slice) {
        if (how == 1 && slice == 2) break;
        code = zinf_stream_run(stream, 1, &progress);
    }
    if (how == 0) check(code == 0 && progress.num_done == view.num_steps, "a program ends");
    if (how == 2 && code < 0) check(progress.result.error == EIO, "the error is told");
    zinf_stream_destroy(stream, &progress);
    munmap(memory, nbytes);
}

}  // namespace

int main(int argc, char** argv) {
    check(argc == 2, "the file is named");
    const uint64_t nbytes = kBuckets * kBucketPages * kPage;
    for (int32_t engine : {ZINF_IO_URING, ZINF_IO_THREADS}) {
        zinf_io_file file{open(argv[1], O_RDWR | O_CREAT, 0600), -1};
        check(file.fd >= 0 && posix_fallocate(file.fd, 0, nbytes) == 0, "a file");
        file.direct_fd = open(argv[1], O_RDWR | O_DIRECT);
        const zinf_io_direction direction{4, 2, 2 * kPage, 2 * kPage};
        const zinf_io_options options{engine, 0, 0, 0, direction, direction};
        for (int how = 0; how < 3; ++how) {
            zinf_io* io = nullptr;
            check(zinf_io_create(&options, &io) == 0, "an engine is made");
            zinf_io_set_fault(io, misbehave, how == 2 ? &file : nullptr);
            const zinf_pool_options threads{2, 0};
            zinf_pool* pool = nullptr;
            check(zinf_pool_create(&threads, &pool) == 0, "a pool is made");
            std::vector<std::thread> callers;
            for (int i = 0; i < 2; ++i)
                callers.emplace_back([&] {
                    for (int round = 0; round < 10; ++round) run(io, pool, file, how);
                });
            for (std::thread& caller : callers) caller.join();
            zinf_pool_destroy(pool);
            zinf_io_destroy(io);
        }
        close(file.fd);
        if (file.direct_fd >= 0) close(file.direct_fd);
    }
    return 0;
}
