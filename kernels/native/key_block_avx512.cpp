// The products of attention on AVX-512, in float32.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")

#include <immintrin.h>

#include <bit>

#include "key_block.h"

namespace slipstream::avx512 {
namespace {

__m512 even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

__m512 odd(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000))));
}

__m512 spread(uint16_t bf16) { return _mm512_set1_ps(std::bit_cast<float>(uint32_t{bf16} << 16)); }

}  // namespace

void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  for (int key = 0; key < block.length; ++key) {
    const uint16_t* const elements = block.keys + key * block.head_dim;
    __m512 sum = _mm512_setzero_ps();
    for (int d = 0; d < block.head_dim; d += 2) {
      const __m512i both = _mm512_loadu_si512(queries[d / 2]);
      sum = _mm512_fmadd_ps(spread(elements[d]), even(both), sum);
      sum = _mm512_fmadd_ps(spread(elements[d + 1]), odd(both), sum);
    }
    _mm512_storeu_ps(scores[key], sum);
  }
}

namespace {

// One lane's sums of 32 elements from d on.
void add_to_lane(const KeyBlock& block, const Weights& weights, int lane, int d,
                 Outputs& outputs) {
  float* const targets[] = {outputs[d / 16][lane], outputs[d / 16 + 1][lane]};
  __m512 sums[] = {_mm512_loadu_ps(targets[0]), _mm512_loadu_ps(targets[1])};
  for (int key = 0; key < block.length; key += 2) {
    const uint16_t* const pair = &weights[key / kHalfKeys][lane][key % kHalfKeys];
    const __m512 first = spread(pair[0]), second = spread(pair[1]);
    for (int i = 0; i < 2; ++i) {
      const uint16_t* const values = block.values + key * block.head_dim + 2 * (d + 16 * i);
      const __m512i both = _mm512_loadu_si512(values);
      sums[i] = _mm512_fmadd_ps(first, even(both), sums[i]);
      sums[i] = _mm512_fmadd_ps(second, odd(both), sums[i]);
    }
  }
  for (int i = 0; i < 2; ++i) _mm512_storeu_ps(targets[i], sums[i]);
}

}  // namespace

void add_values(const KeyBlock& block, const Weights& weights, unsigned lanes, Outputs& outputs) {
  for (; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    for (int d = 0; d < block.head_dim; d += 32) add_to_lane(block, weights, lane, d, outputs);
  }
}

}  // namespace slipstream::avx512
