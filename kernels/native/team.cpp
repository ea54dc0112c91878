#include "team.h"

#include <immintrin.h>

namespace slipstream {
namespace {

// A pause takes some 20 to 50 ns. Within a job the others come soon; the next job may not come at all,
// and the end of a step is when other processes need this core.
constexpr int kPausesForOthers = 1000;
constexpr int kPausesForWork = 100;

// Waits until `value` is no longer `old`: spins for a moment, then sleeps.
void wait_while(std::atomic<int>& value, int old, int pauses) {
  for (int i = 0; i < pauses; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

Team& Team::instance() {
  // Never destroyed: its threads may be asleep when the process ends.
  static Team* team = new Team;
  return *team;
}

void Team::resize(int size) {
  const std::lock_guard lock(running_);
  if (size == size_) return;
  stop();
  size_ = size;
  for (int rank = 1; rank < size; ++rank) {
    workers_.emplace_back([this, rank, seen = job_.load()] { work(rank, seen); });
  }
}

void Team::run(Function function, const void* context) {
  const std::lock_guard lock(running_);
  function_ = function;
  context_ = context;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  function(context, 0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const int phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    wait_while(phase_, phase, kPausesForOthers);
  } else {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  }
}

void Team::work(int rank, int seen) {
  while (true) {
    wait_while(job_, seen, kPausesForWork);
    seen = job_.load(std::memory_order_acquire);
    if (stopping_) return;
    function_(context_, rank);
    barrier();
  }
}

void Team::stop() {
  stopping_ = true;
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  for (auto& worker : workers_) worker.join();
  workers_.clear();
  stopping_ = false;
}

}  // namespace slipstream
