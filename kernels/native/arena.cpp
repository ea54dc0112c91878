#include "arena.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <new>

namespace slipstream {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{64} << 20;
constexpr size_t kAlignment = 64;

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Returns zeroed memory that begins on a huge page.
Bytes map_huge(size_t size) {
  const size_t mapped = size + kHugePage;
  void* const address =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  const Bytes whole(static_cast<std::byte*>(address),
                    [mapped](std::byte* start) { munmap(start, mapped); });
  auto* const aligned = reinterpret_cast<std::byte*>(
      round_up(reinterpret_cast<uintptr_t>(address), kHugePage));
  // Only advice: where it is refused, everything works, at half the speed.
  (void)madvise(aligned, size, MADV_HUGEPAGE);
  return Bytes(whole, aligned);
}

struct Chunk {
  std::weak_ptr<std::byte> start;
  size_t used = kChunk;
};

}  // namespace

Bytes allocate_huge(size_t size) {
  static std::mutex mutex;
  static Chunk chunk;
  const std::lock_guard lock(mutex);
  size = round_up(size, kAlignment);
  if (size > kChunk / 2) return map_huge(round_up(size, kHugePage));
  Bytes start = chunk.start.lock();
  if (!start || chunk.used + size > kChunk) {
    start = map_huge(kChunk);
    chunk = {start, 0};
  }
  std::byte* const piece = start.get() + chunk.used;
  chunk.used += size;
  return Bytes(start, piece);
}

}  // namespace slipstream
