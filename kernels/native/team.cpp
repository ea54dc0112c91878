#include "team.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace slipstream {
namespace {

// A pause takes some 20 to 50 ns. Within a job the others come soon; the next job may not come at all,
// and the end of a step is when other processes need this core.
constexpr int kPausesForOthers = 1000;
constexpr int kPausesForWork = 100;

// std::atomic's own wait is not used: its notify looks for sleepers before a plain store that went
// before is seen by others (GCC 12), so it may miss one that has just gone to sleep. Here both sides
// change memory with a full barrier before they look.
void futex(std::atomic<int>& value, int operation, int argument) {
  syscall(SYS_futex, &value, operation, argument, nullptr, nullptr, 0);
}

}  // namespace

// Waits until the value is no longer `old`: spins for a moment, then sleeps.
void Signal::wait_while(int old, int pauses) {
  for (int i = 0; i < pauses; ++i) {
    if (value_.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  sleepers_.fetch_add(1);
  while (value_.load() == old) futex(value_, FUTEX_WAIT_PRIVATE, old);
  sleepers_.fetch_sub(1);
}

void Signal::raise() {
  value_.fetch_add(1);
  if (sleepers_.load() != 0) futex(value_, FUTEX_WAKE_PRIVATE, INT_MAX);
}

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
    workers_.emplace_back([this, rank, seen = job_.value()] { work(rank, seen); });
  }
}

void Team::run(Function function, const void* context) {
  const std::lock_guard lock(running_);
  function_ = function;
  context_ = context;
  job_.raise();
  function(context, 0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const int phase = phase_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) {
    phase_.wait_while(phase, kPausesForOthers);
  } else {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.raise();
  }
}

void Team::work(int rank, int seen) {
  while (true) {
    job_.wait_while(seen, kPausesForWork);
    seen = job_.value();
    if (stopping_) return;
    function_(context_, rank);
    barrier();
  }
}

void Team::stop() {
  stopping_ = true;
  job_.raise();
  for (auto& worker : workers_) worker.join();
  workers_.clear();
  stopping_ = false;
}

}  // namespace slipstream
