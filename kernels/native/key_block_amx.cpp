// The products of attention on AMX tiles. Keys, as they lie in the cache, are first operands of
// queries; values, as they lie there, are second ones of weights.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16")

#include <immintrin.h>

#include "key_block.h"

namespace slipstream::amx {
namespace {

constexpr int kRowBytes = 64;

// The scores of `tiles` times 16 keys, all in flight at once.
template <int tiles>
void score_tiles(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  const int64_t stride = block.head_dim * sizeof(uint16_t), tile = 16 * block.head_dim;
  _tile_zero(0);
  if constexpr (tiles > 1) _tile_zero(1);
  if constexpr (tiles > 2) _tile_zero(2);
  if constexpr (tiles > 3) _tile_zero(3);
  for (int d = 0; d < block.head_dim; d += 32) {
    const uint16_t* const keys = block.keys + d;
    _tile_loadd(6, queries[d / 2], kRowBytes);
    _tile_loadd(4, keys, stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (tiles > 1) {
      _tile_loadd(5, keys + tile, stride);
      _tile_dpbf16ps(1, 5, 6);
    }
    if constexpr (tiles > 2) {
      _tile_loadd(4, keys + 2 * tile, stride);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (tiles > 3) {
      _tile_loadd(5, keys + 3 * tile, stride);
      _tile_dpbf16ps(3, 5, 6);
    }
  }
  _tile_stored(0, scores[0], kRowBytes);
  if constexpr (tiles > 1) _tile_stored(1, scores[16], kRowBytes);
  if constexpr (tiles > 2) _tile_stored(2, scores[32], kRowBytes);
  if constexpr (tiles > 3) _tile_stored(3, scores[48], kRowBytes);
}

// The sums of up to 64 of the outputs' elements, all in flight at once.
template <int tiles>
void add_tiles(const KeyBlock& block, int d, Outputs& outputs) {
  const int64_t stride = 2 * block.head_dim * sizeof(uint16_t);
  const uint16_t* const first = block.values + 2 * d;
  const uint16_t* const second = first + kHalfKeys * block.head_dim;
  auto* const sums = outputs + d / 16;
  _tile_loadd(0, sums[0], kRowBytes);
  _tile_loadd(1, sums[1], kRowBytes);
  if constexpr (tiles == 4) {
    _tile_loadd(2, sums[2], kRowBytes);
    _tile_loadd(3, sums[3], kRowBytes);
  }
  _tile_loadd(4, first, stride);
  _tile_dpbf16ps(0, 6, 4);
  _tile_loadd(5, first + 32, stride);
  _tile_dpbf16ps(1, 6, 5);
  if constexpr (tiles == 4) {
    _tile_loadd(4, first + 64, stride);
    _tile_dpbf16ps(2, 6, 4);
    _tile_loadd(5, first + 96, stride);
    _tile_dpbf16ps(3, 6, 5);
  }
  if (block.length > kHalfKeys) {
    _tile_loadd(4, second, stride);
    _tile_dpbf16ps(0, 7, 4);
    _tile_loadd(5, second + 32, stride);
    _tile_dpbf16ps(1, 7, 5);
    if constexpr (tiles == 4) {
      _tile_loadd(4, second + 64, stride);
      _tile_dpbf16ps(2, 7, 4);
      _tile_loadd(5, second + 96, stride);
      _tile_dpbf16ps(3, 7, 5);
    }
  }
  _tile_stored(0, sums[0], kRowBytes);
  _tile_stored(1, sums[1], kRowBytes);
  if constexpr (tiles == 4) {
    _tile_stored(2, sums[2], kRowBytes);
    _tile_stored(3, sums[3], kRowBytes);
  }
}

}  // namespace

void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  switch (block.length / 16) {
    case 1: return score_tiles<1>(block, queries, scores);
    case 2: return score_tiles<2>(block, queries, scores);
    case 3: return score_tiles<3>(block, queries, scores);
    default: return score_tiles<4>(block, queries, scores);
  }
}

void add_values(const KeyBlock& block, const Weights& weights, Outputs& outputs) {
  _tile_loadd(6, weights[0], kRowBytes);
  if (block.length > kHalfKeys) _tile_loadd(7, weights[1], kRowBytes);
  int d = 0;
  for (; d + 64 <= block.head_dim; d += 64) add_tiles<4>(block, d, outputs);
  if (d < block.head_dim) add_tiles<2>(block, d, outputs);
}

}  // namespace slipstream::amx
