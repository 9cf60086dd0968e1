#include "pool/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <new>
#include <system_error>

namespace zinf {

namespace {

// A job with more chunks than a range can count runs in several rounds.
constexpr uint64_t kMaxRound = uint64_t{1} << 31;

// The pool whose chunk this thread is running, so that a job within a job does not wait for it.
thread_local const void* running_for = nullptr;

// CPUs' worth of time that the control group of the process grants, 0 if it sets no limit.
double quota_cpus() {
    std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!file) return 0;
    double quota = 0, period = 0;
    int fields = std::fscanf(file, "%lf %lf", &quota, &period);
    std::fclose(file);
    return fields == 2 && period > 0 ? quota / period : 0;
}

std::vector<int> allowed_cpus() {
    cpu_set_t set;
    std::vector<int> cpus;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    return cpus;
}

void pin_this_thread(int32_t index) {
    std::vector<int> cpus = allowed_cpus();
    if (cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[index % cpus.size()], &set);
    sched_setaffinity(0, sizeof set, &set);  // if it is refused, the thread runs anywhere
}

}  // namespace

int32_t available_cpus() {
    auto cpus = static_cast<int32_t>(allowed_cpus().size());
    double quota = quota_cpus();
    if (quota > 0) cpus = std::min(cpus, static_cast<int32_t>(std::ceil(quota)));
    return std::max(cpus, 1);
}

bool ChunkRange::take(uint32_t* chunk) {
    uint64_t word = word_.load();
    for (;;) {
        auto first = static_cast<uint32_t>(word), end = static_cast<uint32_t>(word >> 32);
        if (first >= end) return false;
        if (word_.compare_exchange_weak(word, pack(first + 1, end))) {
            *chunk = first;
            return true;
        }
    }
}

bool ChunkRange::steal(uint32_t* first, uint32_t* end) {
    uint64_t word = word_.load();
    for (;;) {
        auto front = static_cast<uint32_t>(word), back = static_cast<uint32_t>(word >> 32);
        if (front >= back) return false;
        uint32_t middle = front + (back - front) / 2;
        if (word_.compare_exchange_weak(word, pack(front, middle))) {
            *first = middle;
            *end = back;
            return true;
        }
    }
}

uint32_t ChunkRange::left() const {
    uint64_t word = word_.load();
    auto first = static_cast<uint32_t>(word), end = static_cast<uint32_t>(word >> 32);
    return end > first ? end - first : 0;
}

struct Pool::Crew {
    explicit Crew(int32_t size) : ranges(static_cast<size_t>(size)) {}

    const pid_t pid = getpid();
    std::mutex turn;  // held by whoever runs a job
    std::vector<std::thread> threads;

    std::mutex lock;
    std::condition_variable work_there, work_over;
    uint64_t serial = 0;       // of the round at hand
    int32_t working = 0;       // threads that are in it
    int32_t wanted = 0;        // threads that may still enter it
    bool ending = false;

    std::vector<ChunkRange> ranges;
    zinf_chunk chunk = nullptr;
    void* context = nullptr;
    uint64_t base = 0;  // number of the round's first chunk
};

Pool::Pool(const zinf_pool_options& options)
    : size_(options.num_threads > 0 ? options.num_threads : available_cpus()),
      pin_(options.pin != 0),
      crew_(new Crew(size_)) {}

Pool::~Pool() {
    Crew* crew = crew_.load();
    if (crew->pid != getpid()) return;  // its threads and locks are the parent's: let it leak
    {
        std::lock_guard hold(crew->lock);
        crew->ending = true;
    }
    crew->work_there.notify_all();
    for (std::thread& thread : crew->threads) thread.join();
    delete crew;
}

Pool::Crew& Pool::crew_of_this_process() {
    Crew* crew = crew_.load();
    if (crew->pid == getpid()) return *crew;
    auto* fresh = new Crew(size_);
    if (crew_.compare_exchange_strong(crew, fresh)) return *fresh;
    delete fresh;  // another thread of the child was faster
    return *crew;
}

void Pool::start(Crew& crew) {
    // Without the signals of the process: Python's handlers belong to its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        while (crew.threads.size() + 1 < static_cast<size_t>(size_)) {
            auto index = static_cast<int32_t>(crew.threads.size()) + 1;
            crew.threads.emplace_back([&crew, index, pin = pin_, pool = this] {
                running_for = pool;
                if (pin) pin_this_thread(index);
                serve(crew, index);
            });
            pthread_setname_np(crew.threads.back().native_handle(), "zinf-pool");
        }
    } catch (const std::system_error&) {
        // Fewer threads do: whoever has none left steals the chunks of those that did not start.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::run(uint64_t num_chunks, zinf_chunk chunk, void* context) {
    if (size_ == 1 || num_chunks <= 1 || running_for == this) {
        for (uint64_t i = 0; i < num_chunks; ++i) chunk(context, i);
        return;
    }
    Crew& crew = crew_of_this_process();
    std::lock_guard turn(crew.turn);
    if (crew.threads.empty()) start(crew);
    const void* outer = running_for;
    running_for = this;
    for (uint64_t base = 0; base < num_chunks; base += kMaxRound) {
        uint64_t round = std::min(num_chunks - base, kMaxRound);
        {
            std::lock_guard hold(crew.lock);
            crew.chunk = chunk;
            crew.context = context;
            crew.base = base;
            for (int32_t i = 0; i < size_; ++i) {
                auto begin = static_cast<uint32_t>(round * i / size_);
                auto end = static_cast<uint32_t>(round * (i + 1) / size_);
                crew.ranges[i].set(begin, end);
            }
            ++crew.serial;
            crew.wanted = static_cast<int32_t>(std::min<uint64_t>(round, size_)) - 1;
        }
        crew.work_there.notify_all();
        work(crew, 0);
        std::unique_lock hold(crew.lock);
        crew.wanted = 0;  // whoever has not woken by now finds nothing to do
        crew.work_over.wait(hold, [&] { return crew.working == 0; });
    }
    running_for = outer;
}

void Pool::serve(Crew& crew, int32_t index) {
    std::unique_lock hold(crew.lock);
    uint64_t seen = 0;
    for (;;) {
        crew.work_there.wait(
            hold, [&] { return crew.ending || (crew.serial != seen && crew.wanted > 0); });
        if (crew.ending) return;
        seen = crew.serial;
        --crew.wanted;
        ++crew.working;
        hold.unlock();
        work(crew, index);
        hold.lock();
        if (--crew.working == 0) crew.work_over.notify_all();
    }
}

void Pool::work(Crew& crew, int32_t index) {
    const auto size = static_cast<int32_t>(crew.ranges.size());
    for (;;) {
        uint32_t chunk = 0;
        while (crew.ranges[index].take(&chunk)) crew.chunk(crew.context, crew.base + chunk);
        int32_t victim = -1;
        uint32_t most = 0;
        for (int32_t i = 1; i < size; ++i) {
            int32_t other = (index + i) % size;
            uint32_t left = crew.ranges[other].left();
            if (left > most) most = left, victim = other;
        }
        if (victim < 0) return;
        uint32_t first = 0, end = 0;
        if (crew.ranges[victim].steal(&first, &end)) crew.ranges[index].set(first, end);
    }
}

}  // namespace zinf

extern "C" {

struct zinf_pool {
    zinf::Pool pool;
};

int32_t zinf_pool_create(const zinf_pool_options* options, zinf_pool** pool) {
    if (!options || !pool || options->num_threads < 0 || options->num_threads > 4096)
        return -EINVAL;
    try {
        *pool = new zinf_pool{zinf::Pool(*options)};
    } catch (const std::bad_alloc&) {
        return -ENOMEM;
    }
    return 0;
}

void zinf_pool_destroy(zinf_pool* pool) { delete pool; }

int32_t zinf_pool_size(const zinf_pool* pool) { return pool->pool.size(); }

int32_t zinf_pool_run(zinf_pool* pool, uint64_t num_chunks, zinf_chunk chunk, void* context) {
    if (!pool || !chunk) return -EINVAL;
    pool->pool.run(num_chunks, chunk, context);
    return 0;
}
}
