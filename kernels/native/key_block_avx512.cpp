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

// sum + the dot product of `count` elements with as many in pairs, lane by lane.
__m512 add_products(__m512 sum, const uint16_t* elements, const uint16_t (*pairs)[kLanes][2],
                    int count) {
  for (int i = 0; i < count; i += 2) {
    const __m512i both = _mm512_loadu_si512(pairs[i / 2]);
    sum = _mm512_fmadd_ps(spread(elements[i]), even(both), sum);
    sum = _mm512_fmadd_ps(spread(elements[i + 1]), odd(both), sum);
  }
  return sum;
}

}  // namespace

void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  for (int key = 0; key < kBlockKeys; ++key) {
    const uint16_t* const elements = block.keys + key * block.key_stride;
    _mm512_storeu_ps(scores[key],
                     add_products(_mm512_setzero_ps(), elements, queries, block.head_dim));
  }
}

void add_values(const KeyBlock& block, const PairedWeights& weights, Outputs& outputs) {
  for (int d = 0; d < block.head_dim; ++d) {
    const uint16_t* const elements = block.values + d * block.value_stride;
    const __m512 sum = _mm512_loadu_ps(outputs[d]);
    _mm512_storeu_ps(outputs[d], add_products(sum, elements, weights, kBlockKeys));
  }
}

}  // namespace slipstream::avx512
