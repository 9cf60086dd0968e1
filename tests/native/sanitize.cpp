// Drives the library through its C interface, to be built with sanitizers: no Python around it.
// Exits with 0 when all went well; says what did not otherwise.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "zinf.h"

namespace {

constexpr uint64_t kPage = 4096, kFilePages = 256;

void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

struct Counts {
    zinf_pool* pool;
    std::vector<std::atomic<int>> ran = std::vector<std::atomic<int>>(1000);
};

void count(void* context, uint64_t chunk) {
    auto* counts = static_cast<Counts*>(context);
    counts->ran[chunk]++;
    if (chunk % 100 == 0)  // a job within a job
        zinf_pool_run(
            counts->pool, 3, [](void*, uint64_t) {}, nullptr);
}

void use_pool() {
    zinf_pool_options options{4, 0};
    zinf_pool* pool = nullptr;
    check(zinf_pool_create(&options, &pool) == 0, "a pool is made");
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; ++i)
        callers.emplace_back([pool] {
            Counts counts{pool};
            for (int round = 0; round < 20; ++round)
                zinf_pool_run(pool, counts.ran.size(), count, &counts);
            for (auto& each : counts.ran) check(each == 20, "every chunk runs once a job");
        });
    for (std::thread& caller : callers) caller.join();
    zinf_pool_destroy(pool);
}

std::atomic<uint32_t> fault_state{1};

// Errors, short transfers and interruptions, now and then.
void misbehave(void*, int32_t after, zinf_io_call* call) {
    uint32_t dice = fault_state.fetch_add(2654435761u) >> 24;
    if (after) {
        if (dice < 20 && call->result > 1) call->result -= 1;
    } else if (dice < 10) {
        call->result = -EIO;
    } else if (dice < 40) {
        call->result = -EINTR;
    } else if (dice < 80 && call->nbytes > kPage) {
        call->nbytes = kPage;
    }
}

struct Job {
    std::vector<unsigned char> memory;
    std::vector<uint32_t> sums;
    uint64_t ticket = 0;
};

struct Files {
    zinf_io_file pair;
    explicit Files(const char* path) {
        pair.fd = open(path, O_RDWR | O_CREAT, 0600);
        check(pair.fd >= 0 && posix_fallocate(pair.fd, 0, kFilePages * kPage) == 0, "a file");
        pair.direct_fd = open(path, O_RDWR | O_DIRECT);
    }
    ~Files() {
        close(pair.fd);
        if (pair.direct_fd >= 0) close(pair.direct_fd);
    }
};

void submit(zinf_io* io, const Files& files, Job& job, int32_t channel, uint64_t page,
            uint64_t nbytes, uint32_t* sums) {
    job.memory.resize(nbytes + 64);
    auto address = reinterpret_cast<uint64_t>(job.memory.data());
    zinf_io_span span{page * kPage, address, nbytes, nbytes, nbytes, sums, 0, 0};
    zinf_io_request request{};
    request.files = &files.pair;
    request.num_files = 1;
    request.spans = &span;
    request.num_spans = 1;
    check(zinf_io_submit(io, channel, nbytes % 3 == 0, &request, &job.ticket) == 0, "a request");
}

// Submit from one of several threads, each in a part of the file of its own.
void use_io(zinf_io* io, const Files& files, int part, bool faults) {
    std::mt19937 random(part);
    for (int round = 0; round < 40; ++round) {
        uint64_t nbytes = random() % (16 * kPage) + 1;
        Job written, read;
        written.memory.resize(nbytes + 64);
        for (auto& byte : written.memory) byte = static_cast<unsigned char>(random());
        written.sums.resize(nbytes / kPage + 1);
        uint32_t* const sums = round % 2 ? written.sums.data() : nullptr;
        submit(io, files, written, ZINF_IO_WRITE, part * 32, nbytes, sums);
        if (round % 5 == 0) zinf_io_cancel(io, written.ticket);
        zinf_io_wait(io, written.ticket, -1);
        submit(io, files, read, ZINF_IO_READ, part * 32, nbytes, sums);
        if (round % 7 == 0) zinf_io_cancel(io, read.ticket);
        zinf_io_wait(io, read.ticket, -1);
        bool compare = !faults && round % 5 && round % 7;
        check(!compare || !std::memcmp(read.memory.data(), written.memory.data(), nbytes),
              "what was written comes back");
        zinf_io_result results[16];
        zinf_io_reap(io, results, 16);
        zinf_io_status status;
        zinf_io_get_status(io, &status);
    }
}

void use_engine(int32_t engine, const Files& files, bool faults) {
    zinf_io_direction direction{4, 2, 4 * kPage, 2 * kPage};
    zinf_io_options options{engine, 0, 1, 0, direction, direction};
    zinf_io* io = nullptr;
    check(zinf_io_create(&options, &io) == 0, "an engine is made");
    if (faults) zinf_io_set_fault(io, misbehave, nullptr);
    std::vector<std::thread> callers;
    for (int part = 0; part < 4; ++part)
        callers.emplace_back([&, part] { use_io(io, files, part, faults); });
    for (std::thread& caller : callers) caller.join();
    std::vector<Job> left(20);  // nobody waits for these
    for (size_t i = 0; i < left.size(); ++i)
        submit(io, files, left[i], i % 2 ? ZINF_IO_READ : ZINF_IO_WRITE, 8 * i, 7 * kPage + i, nullptr);
    zinf_io_retire(io);
    zinf_io_destroy(io);
}

}  // namespace

int main(int, char** arguments) {
    use_pool();
    Files files(arguments[1]);
    for (bool faults : {false, true}) {
        use_engine(ZINF_IO_THREADS, files, faults);
        if (zinf_io_probe_uring(nullptr, 0) == 0) use_engine(ZINF_IO_URING, files, faults);
    }
    return 0;
}
