// Requests, the queues of the four channels, and what the threads that serve them share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "io/blocks.h"
#include "io/buffers.h"
#include "zinf.h"

namespace zinf {

// What a caller asked for, and how far it has come.  Guarded by the engine's lock, but for the
// members that never change.
struct Request {
    const uint64_t ticket;
    const int32_t channel;
    const bool urgent;
    const std::vector<zinf_io_file> files;

    zinf_io_result* const taker;  // where the result goes; null: to whoever reaps next

    Cutter cutter;
    uint32_t under_way = 0;
    zinf_io_result result{};
};

// A block that has started.  Only the thread that carries it out touches it.
struct Job {
    Request* request = nullptr;
    Block block{};
    Route route = Route::kDirect;  // how it goes, which the engine may have changed
    uint64_t address = 0;          // where the calls move bytes: a buffer's, or the request's
    uint64_t total = 0, done = 0;  // bytes that the calls have to move, and have moved
    int64_t buffer = -1;
    zinf_io_call call{};  // the one at hand
    int call_fd = -1;
};

class Ring;

class Engine {
  public:
    explicit Engine(const zinf_io_options& options);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // With a `taker` the result goes there, before a wait for the ticket ends, and is not reaped.
    int32_t submit(int32_t channel, bool urgent, const zinf_io_request& asked, uint64_t* ticket,
                   zinf_io_result* taker = nullptr);
    int32_t wait(uint64_t ticket, int64_t milliseconds);
    int32_t cancel(uint64_t ticket);
    int32_t reap(zinf_io_result* results, int32_t capacity);
    void retire();
    void status(zinf_io_status* status);
    void set_fault(zinf_io_fault fault, void* context);

  private:
    struct Channel {
        Channel(int32_t index, const zinf_io_direction& direction);
        ~Channel();
        std::deque<Request*>& queue() { return urgent.empty() ? planned : urgent; }
        bool idle() const { return urgent.empty() && planned.empty(); }

        const int32_t index;
        const zinf_io_direction direction;
        std::deque<Request*> planned, urgent;
        std::condition_variable work_there, buffer_free;
        Buffers buffers;
        std::vector<std::thread> threads;
        std::unique_ptr<Ring> ring;  // set before its thread starts
        bool in_ring = false;        // its thread is waiting for completions
        bool registered = false;     // its ring has the buffers locked in memory
    };

    // Threads.
    int32_t start(Channel& channel);
    void start_ring(Channel& channel);
    void serve(Channel& channel);       // with one blocking call at a time
    void serve_ring(Channel& channel);  // with as many as the ring holds

    // The thread of a ring.
    struct Slots;
    // Start blocks while there are slots and work; false once there will be no more work.
    bool fill(Channel& channel, Slots& slots);
    void launch(Channel& channel, Slots& slots, uint32_t slot);
    void settle(Channel& channel, Slots& slots, uint32_t slot, int64_t result);

    // The life of a block.
    bool take(Channel& channel, Job* job);  // the lock is held
    // Give it a buffer if it needs one; false if none is free.  The lock is held.
    bool equip(Channel& channel, Job& job, int32_t* error);
    void begin(Job& job);
    bool prepare_call(Job& job);
    int32_t digest(Job& job, int64_t result, bool* over);
    int32_t conclude(Job& job);
    void finish(Channel& channel, Job& job, int32_t error, uint64_t moved_bytes);
    int64_t blocking_call(const Job& job);
    int32_t check_sums(Job& job);

    // Requests.  The lock is held.
    void report(const Request& request);
    void drop_queued(Channel& channel, Request& request);
    void end(Request& request);
    void go_buffered(const char* reason);

    const zinf_io_options options_;
    const pid_t pid_;
    std::mutex lock_;
    std::condition_variable over_;
    std::unique_ptr<Channel> channels_[ZINF_IO_CHANNELS];
    std::unordered_map<uint64_t, std::unique_ptr<Request>> active_;
    std::deque<zinf_io_result> finished_;
    uint64_t last_ticket_ = 0;
    bool retired_ = false;
    int32_t engine_;
    std::string engine_reason_, buffered_reason_, registered_reason_;
    std::atomic<bool> buffered_;

    std::atomic<zinf_io_fault> fault_{nullptr};
    std::atomic<void*> fault_context_{nullptr};
    std::atomic<uint64_t> calls_{0};
};

}  // namespace zinf
