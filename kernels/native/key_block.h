// Two products of 16 queries with a block of 64 keys, the only part of attention that differs
// between instruction sets.
//
// They are called within a TileScope of all rows. Keys are first operands and values second ones,
// as they lie in the cache. So queries lie in the lanes of scores, where a softmax over keys needs
// no shuffles, and in the rows of outputs.
#pragma once

#include <cstdint>

namespace slipstream {

constexpr int kBlockKeys = 64;
constexpr int kHalfKeys = kBlockKeys / 2;
constexpr int kLanes = 16;
constexpr int kMaxHeadDim = 256;

// Queries as products read them: pairs (2i, 2i + 1) of bf16 side by side, one pair a lane.
using PairedQueries = uint16_t[kMaxHeadDim / 2][kLanes][2];

// Weights of the keys in bf16, for each half of a block a tile with a row a lane.
using Weights = uint16_t[2][kLanes][kHalfKeys];

// A block of keys [64][D] and of values [32][D][2], two keys' values side by side. D is a multiple
// of 32. No lane sees more keys than the first `length`, a multiple of 16: those are read, and the
// values of whole halves.
struct KeyBlock {
  const uint16_t* keys;
  const uint16_t* values;
  int head_dim;
  int length;
};

using Scores = float[kBlockKeys][kLanes];
// Tile after tile of 16 elements d, with a row a lane.
using Outputs = float[kMaxHeadDim / 16][kLanes][16];

// scores[key][lane] = keys . queries, of the block's length
void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores);

// outputs[d / 16][lane][d % 16] += weights . values. The lanes not in the mask weigh nothing.
void add_values(const KeyBlock& block, const Weights& weights, unsigned lanes, Outputs& outputs);

namespace amx {
void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores);
void add_values(const KeyBlock& block, const Weights& weights, Outputs& outputs);
}  // namespace amx

namespace avx512 {
void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores);
void add_values(const KeyBlock& block, const Weights& weights, unsigned lanes, Outputs& outputs);
}  // namespace avx512

namespace avx512_bf16 {
void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores);
void add_values(const KeyBlock& block, const Weights& weights, unsigned lanes, Outputs& outputs);
}  // namespace avx512_bf16

}  // namespace slipstream
