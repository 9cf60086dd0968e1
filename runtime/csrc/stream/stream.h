// A program at work: which requests are under way, and which step is next.
#pragma once

#include <cstdint>
#include <deque>

#include "zinf_stream.h"

namespace zinf {

class Engine;

class Stream {
  public:
    Stream(Engine& engine, zinf_pool* pool, const zinf_stream_program& program);
    // Lets nothing stay under way: the memory of a request is its owner's again.
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    int32_t run(int64_t milliseconds);
    // Go on with a program that begins as the one so far; -EINVAL for a shorter one.
    int32_t extend(const zinf_stream_program& program);
    // Start no further block of what is under way, and wait for the rest.
    void stop();
    const zinf_stream_progress& progress() const { return progress_; }

  private:
    // A request of the program.  `result` is written by the engine until the request is over.
    struct Flight {
        uint64_t ticket = 0;
        bool under_way = false;
        zinf_io_result result{};
    };

    int32_t start(uint32_t index);
    // -ETIMEDOUT if it is not over after so many milliseconds.
    int32_t await(uint32_t index, int64_t milliseconds);
    void land(uint32_t index);

    Engine& engine_;
    zinf_pool* const pool_;
    zinf_stream_program program_;
    std::deque<Flight> flights_;  // which do not move: the engine writes into them
    zinf_stream_progress progress_{};
};

// Whether every index of the program is within its array, and the order of its steps possible.
bool makes_sense(const zinf_stream_program& program);

}  // namespace zinf
