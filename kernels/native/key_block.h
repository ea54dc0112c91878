// Two products of 16 queries with a block of 64 keys, the only part of attention that differs
// between instruction sets.
//
// They are called within a TileScope of all rows. Queries lie in the lanes: both results are transposed, so that a softmax over keys needs no
// shuffles and neither keys nor values need be rearranged.
#pragma once

#include <cstdint>

namespace slipstream {

constexpr int kBlockKeys = 64;
constexpr int kLanes = 16;
constexpr int kMaxHeadDim = 256;

// Queries, and weights of keys, as products read them: pairs (2i, 2i + 1) of bf16 side by side, one
// pair a lane.
using PairedQueries = uint16_t[kMaxHeadDim / 2][kLanes][2];
using PairedWeights = uint16_t[kBlockKeys / 2][kLanes][2];

// A block of keys [64][D] and of values [D][64], rows `stride` elements apart. D is a multiple of 32.
struct KeyBlock {
  const uint16_t* keys;
  int64_t key_stride;
  const uint16_t* values;
  int64_t value_stride;
  int head_dim;
};

using Scores = float[kBlockKeys][kLanes];
using Outputs = float[kMaxHeadDim][kLanes];

// scores[key][lane] = keys . queries
void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores);

// outputs[d][lane] += values . weights
void add_values(const KeyBlock& block, const PairedWeights& weights, Outputs& outputs);

namespace amx {
void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores);
void add_values(const KeyBlock& block, const PairedWeights& weights, Outputs& outputs);
}  // namespace amx

namespace avx512 {
void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores);
void add_values(const KeyBlock& block, const PairedWeights& weights, Outputs& outputs);
}  // namespace avx512

}  // namespace slipstream
