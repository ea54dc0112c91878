#include "cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace slipstream {
namespace {

bool bit(unsigned word, int index) { return (word >> index) & 1; }

// Which register files the operating system saves. Read only where OSXSAVE says that it can be.
uint64_t saved_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

#ifdef SLIPSTREAM_AVX2

constexpr uint64_t kYmmState = 0x6;  // SSE and AVX

Isa find_best() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27) || !bit(c, 12)) return Isa::kNone;
  const uint64_t saved = saved_state();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !bit(b, 5)) return Isa::kNone;
  return (saved & kYmmState) == kYmmState ? Isa::kAvx2 : Isa::kNone;
}

#else

constexpr long kArchReqXcompPerm = 0x1023;
constexpr long kXfeatureTileData = 18;
constexpr uint64_t kZmmState = 0xe6;     // SSE, AVX, opmask, both halves of ZMM
constexpr uint64_t kTileState = 0x60000;  // tile configuration and data

bool may_use_tiles() {
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

Isa find_best() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return Isa::kNone;
  const uint64_t saved = saved_state();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return Isa::kNone;
  // F, DQ, BW, VL and, for 8-bit weights, VNNI.
  const bool avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31) && bit(c, 11);
  if (!avx512 || (saved & kZmmState) != kZmmState) return Isa::kNone;
  const bool amx = bit(d, 22) && bit(d, 24) && bit(d, 25) && (saved & kTileState) == kTileState;
  if (amx && may_use_tiles()) return Isa::kAmx;
  const bool bf16 = __get_cpuid_count(7, 1, &a, &b, &c, &d) && bit(a, 5);
  return bf16 ? Isa::kAvx512Bf16 : Isa::kAvx512;
}

#endif

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{best_isa()};
  return isa;
}

}  // namespace

Isa best_isa() {
  static const Isa best = find_best();
  return best;
}

Isa current_isa() { return current().load(std::memory_order_relaxed); }

void use_isa(Isa isa) { current() = std::min(isa, best_isa()); }

}  // namespace slipstream
