// The products of attention on AMX tiles. Keys, and transposed values, are first operands as they
// lie in the cache; queries and weights are second ones.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16")

#include <immintrin.h>

#include "key_block.h"

namespace slipstream::amx {
namespace {

constexpr int kRowBytes = kLanes * sizeof(float);

}  // namespace

void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  const int64_t stride = block.key_stride * sizeof(uint16_t);
  const uint16_t* const keys[] = {block.keys, block.keys + 16 * block.key_stride,
                                  block.keys + 32 * block.key_stride,
                                  block.keys + 48 * block.key_stride};
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d < block.head_dim; d += 32) {
    _tile_loadd(6, queries[d / 2], kRowBytes);
    _tile_loadd(4, keys[0] + d, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, keys[1] + d, stride);
    _tile_dpbf16ps(1, 5, 6);
    _tile_loadd(4, keys[2] + d, stride);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(5, keys[3] + d, stride);
    _tile_dpbf16ps(3, 5, 6);
  }
  _tile_stored(0, scores[0], kRowBytes);
  _tile_stored(1, scores[16], kRowBytes);
  _tile_stored(2, scores[32], kRowBytes);
  _tile_stored(3, scores[48], kRowBytes);
}

namespace {

// The sums of up to 64 of the outputs' elements, all in flight at once.
template <int tiles>
void add_tiles(const uint16_t* values, int64_t value_stride, float (*outputs)[kLanes]) {
  const int64_t stride = value_stride * sizeof(uint16_t), tile = 16 * value_stride;
  _tile_loadd(0, outputs[0], kRowBytes);
  _tile_loadd(1, outputs[16], kRowBytes);
  if constexpr (tiles == 4) {
    _tile_loadd(2, outputs[32], kRowBytes);
    _tile_loadd(3, outputs[48], kRowBytes);
  }
  _tile_loadd(4, values, stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(5, values + tile, stride);
  _tile_dpbf16ps(1, 5, 6);
  if constexpr (tiles == 4) {
    _tile_loadd(4, values + 2 * tile, stride);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(5, values + 3 * tile, stride);
    _tile_dpbf16ps(3, 5, 6);
  }
  _tile_loadd(4, values + 32, stride);
  _tile_dpbf16ps(0, 4, 7);
  _tile_loadd(5, values + tile + 32, stride);
  _tile_dpbf16ps(1, 5, 7);
  if constexpr (tiles == 4) {
    _tile_loadd(4, values + 2 * tile + 32, stride);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, values + 3 * tile + 32, stride);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, outputs[0], kRowBytes);
  _tile_stored(1, outputs[16], kRowBytes);
  if constexpr (tiles == 4) {
    _tile_stored(2, outputs[32], kRowBytes);
    _tile_stored(3, outputs[48], kRowBytes);
  }
}

}  // namespace

void add_values(const KeyBlock& block, const PairedWeights& weights, Outputs& outputs) {
  _tile_loadd(6, weights[0], kRowBytes);
  _tile_loadd(7, weights[16], kRowBytes);
  int d = 0;
  for (; d + 64 <= block.head_dim; d += 64) {
    add_tiles<4>(block.values + d * block.value_stride, block.value_stride, outputs + d);
  }
  if (d < block.head_dim) {
    add_tiles<2>(block.values + d * block.value_stride, block.value_stride, outputs + d);
  }
}

}  // namespace slipstream::amx
