// One thread that keeps as many blocks under way as its ring holds.
#include <cerrno>
#include <deque>
#include <utility>

#include "io/engine.h"
#include "io/uring.h"

namespace zinf {

// The blocks of a ring, by slot.
struct Engine::Slots {
    explicit Slots(uint32_t depth) : jobs(depth) {
        for (uint32_t i = depth; i > 0; --i) free.push_back(i - 1);
    }
    size_t under_way() const { return jobs.size() - free.size(); }

    std::vector<Job> jobs;
    std::vector<uint32_t> free;
    std::vector<uint32_t> replaced;  // those whose call a fault has replaced
    std::deque<Job> landed;          // blocks of which only the sums are left to do
    Job held;                        // a block that waits for a buffer
    bool is_held = false;
};

void Engine::serve_ring(Channel& channel) {
    Ring& ring = *channel.ring;
    Slots slots(channel.direction.depth);
    while (fill(channel, slots)) {
        bool sleep = slots.replaced.empty() && slots.landed.empty();
        {
            std::lock_guard hold(lock_);
            bool room = !slots.free.empty() && !slots.is_held;
            if (room && !channel.idle()) sleep = false;  // a request has come meanwhile
            channel.in_ring = room && sleep;
            if (channel.in_ring) ring.arm_wake();
        }
        ring.enter(sleep);
        {
            std::lock_guard hold(lock_);
            channel.in_ring = false;
        }
        uint64_t slot = 0;
        int32_t result = 0;
        while (ring.complete(&slot, &result))
            if (slot != Ring::kWoken) settle(channel, slots, static_cast<uint32_t>(slot), result);
        for (uint32_t each : std::exchange(slots.replaced, {}))
            settle(channel, slots, each, slots.jobs[each].call.result);
        if (!slots.landed.empty()) {  // one: meanwhile slots may have come free to be filled
            Job job = slots.landed.front();
            slots.landed.pop_front();
            int32_t error = conclude(job);
            finish(channel, job, error, error ? 0 : job.total);
        }
    }
}

bool Engine::fill(Channel& channel, Slots& slots) {
    while (!slots.free.empty()) {
        Job job;
        int32_t error = 0;
        {
            std::unique_lock hold(lock_);
            if (slots.is_held) {
                job = slots.held;
            } else {
                const bool busy = slots.under_way() > 0 || !slots.landed.empty();
                if (!busy)
                    channel.work_there.wait(hold, [&] { return retired_ || !channel.idle(); });
                if (!take(channel, &job)) return busy;
            }
            slots.is_held = !equip(channel, job, &error);
            if (slots.is_held) {  // blocks under way have all the buffers, and will give one back
                slots.held = job;
                return true;
            }
        }
        if (error) {
            finish(channel, job, error, 0);
            continue;
        }
        begin(job);
        uint32_t slot = slots.free.back();
        slots.free.pop_back();
        slots.jobs[slot] = job;
        launch(channel, slots, slot);
    }
    return true;
}

void Engine::launch(Channel& channel, Slots& slots, uint32_t slot) {
    Job& job = slots.jobs[slot];
    if (!prepare_call(job)) {
        slots.replaced.push_back(slot);
        return;
    }
    channel.ring->queue(channel.index == ZINF_IO_WRITE, job.call_fd, job.address + job.done,
                        static_cast<uint32_t>(job.call.nbytes), job.call.offset,
                        channel.registered ? job.buffer : -1, slot);
}

void Engine::settle(Channel& channel, Slots& slots, uint32_t slot, int64_t result) {
    Job& job = slots.jobs[slot];
    bool over = false;
    int32_t error = digest(job, result, &over);
    if (!over) {
        launch(channel, slots, slot);
        return;
    }
    slots.free.push_back(slot);
    if (!error && job.block.sums) {  // they take time, in which the ring is to have work
        slots.landed.push_back(job);
        return;
    }
    if (!error) error = conclude(job);
    finish(channel, job, error, error ? 0 : job.total);
}

}  // namespace zinf
