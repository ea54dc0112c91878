// The threads of this process that compute, and how they wait for each other.
//
// A step is hundreds of short phases: a waiting thread spins for some microseconds, because waking
// a sleeping one takes longer than most phases. It then sleeps: when something else needs the
// core, nobody spins against it, and a service without work uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace slipstream {

struct Range {
  int begin;
  int end;
};

// A number that only grows, and those who wait for it to.
class Signal {
 public:
  int value() const { return value_.load(std::memory_order_acquire); }
  void wait_while(int old, int pauses);
  void raise();

 private:
  // On a cache line of its own: it is written by one thread while others read.
  alignas(64) std::atomic<int> value_{0};
  std::atomic<int> sleepers_{0};
};

class Team {
 public:
  static Team& instance();

  // Uses `size` threads from now on, the caller of `run` being one of them.
  void resize(int size);
  int size() const { return size_; }

  // Runs work(rank) on every thread and returns when all are done. One caller at a time.
  template <class Work>
  void run(const Work& work) {
    run([](const void* context, int rank) { (*static_cast<const Work*>(context))(rank); }, &work);
  }

  // Within `run`: returns when every thread has come here.
  void barrier();

  // A thread's share of `count` things: consecutive ones, evenly spread.
  Range share(int count, int rank) const {
    return {int(int64_t(count) * rank / size_), int(int64_t(count) * (rank + 1) / size_)};
  }

 private:
  using Function = void (*)(const void* context, int rank);

  void run(Function function, const void* context);
  void work(int rank, int seen);
  void stop();

  std::mutex running_;
  std::vector<std::thread> workers_;
  int size_ = 1;
  Function function_ = nullptr;
  const void* context_ = nullptr;
  Signal job_;
  Signal phase_;
  alignas(64) std::atomic<int> arrived_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace slipstream
