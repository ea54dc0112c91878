#pragma GCC target("amx-tile")

#include "tiles.h"

#include <immintrin.h>

#include <cstdint>

#include "cpu.h"

namespace slipstream {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

constexpr int kRowBytes = 64;
constexpr int kMaxRows = 16;

}  // namespace

TileScope::TileScope(int rows) : configured_(current_isa() == Isa::kAmx) {
  if (!configured_) return;
  const int low = rows < kMaxRows ? rows : kMaxRows, high = rows > kMaxRows ? rows - kMaxRows : 1;
  const int tile_rows[] = {low, low, high, high, low, high, kMaxRows, kMaxRows};
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = uint8_t(tile_rows[tile]);
    config.row_bytes[tile] = kRowBytes;
  }
  // GCC 12 believes that only eight bytes of it are read, and drops the stores to the others.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

TileScope::~TileScope() {
  if (configured_) _tile_release();
}

}  // namespace slipstream
