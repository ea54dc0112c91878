// The products of attention on vectors, by pairs of bf16.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstring>

#include "key_block.h"

namespace slipstream {
namespace {

// A pair in every lane.
inline __m512i spread(const uint16_t* pair) {
  int both;
  std::memcpy(&both, pair, sizeof both);
  return _mm512_set1_epi32(both);
}

// So many keys share a reading of the queries.
#ifdef SLIPSTREAM_AVX2
constexpr int kKeysAtOnce = 4;
#else
constexpr int kKeysAtOnce = 8;
#endif

template <class Dot>
void score_on_vectors(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  for (int key = 0; key < block.length; key += kKeysAtOnce) {
    __m512 sums[kKeysAtOnce] = {};
    for (int d = 0; d < block.head_dim; d += 2) {
      const __m512i wanted = _mm512_loadu_si512(queries[d / 2]);
#pragma GCC unroll 8
      for (int i = 0; i < kKeysAtOnce; ++i) {
        const __m512i elements = spread(block.keys + (key + i) * block.head_dim + d);
        sums[i] = Dot::add(sums[i], elements, wanted);
      }
    }
    for (int i = 0; i < kKeysAtOnce; ++i) _mm512_storeu_ps(scores[key + i], sums[i]);
  }
}

// One lane's sums of 32 elements from d on.
template <class Dot>
void add_to_lane(const KeyBlock& block, const Weights& weights, int lane, int d,
                 Outputs& outputs) {
  float* const targets[] = {outputs[d / 16][lane], outputs[d / 16 + 1][lane]};
  __m512 sums[] = {_mm512_loadu_ps(targets[0]), _mm512_loadu_ps(targets[1])};
  for (int key = 0; key < block.length; key += 2) {
    const __m512i pair = spread(&weights[key / kHalfKeys][lane][key % kHalfKeys]);
    for (int i = 0; i < 2; ++i) {
      const uint16_t* const values = block.values + key * block.head_dim + 2 * (d + 16 * i);
      sums[i] = Dot::add(sums[i], pair, _mm512_loadu_si512(values));
    }
  }
  for (int i = 0; i < 2; ++i) _mm512_storeu_ps(targets[i], sums[i]);
}

template <class Dot>
void add_values_on_vectors(const KeyBlock& block, const Weights& weights, unsigned lanes,
                           Outputs& outputs) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    for (int d = 0; d < block.head_dim; d += 32) add_to_lane<Dot>(block, weights, lane, d, outputs);
  }
}

}  // namespace
}  // namespace slipstream
