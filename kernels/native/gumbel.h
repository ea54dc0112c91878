// The noise of tokens; see kernels/noise.py, whose words and uniforms these are, bit for bit.
// Include it after target.h.
//
// Tokens come in groups of 32: one vector of counters of the cipher, whose words lie in the lower
// halves of 64-bit lanes, where products need no shuffles.
#pragma once

#include "exp_log.h"
#include "sampler.h"

namespace slipstream {
namespace {

constexpr int kGroup = 32;

// 16 tokens each, in order.
struct Group {
  __m512i halves[2];
};

// The high half of a product, with the word and the key that it meets.
inline __m512i mixed(__m512i product, __m512i word, int64_t key) {
  constexpr int kXorOfAll = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_srli_epi64(product, 32), word, _mm512_set1_epi64(key),
                                   kXorOfAll);
}

inline __m512i side_by_side(__m512i even, __m512i odd) {
  return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

// Philox4x32-10: the words of a group that begins at `token`, a multiple of 32. Upper halves of
// lanes hold rubbish between rounds, which products do not read.
inline Group words_of(const Draw& draw, int row, int token) {
  __m512i c0 =
      _mm512_add_epi64(_mm512_set1_epi64(token / 4), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
  __m512i c1 = _mm512_set1_epi64(draw.positions[row]);
  __m512i c2 = _mm512_setzero_si512(), c3 = c2;
  for (const auto& key : draw.keys[row].words) {
    const __m512i product0 = _mm512_mul_epu32(c0, _mm512_set1_epi64(0xD2511F53));
    const __m512i product1 = _mm512_mul_epu32(c2, _mm512_set1_epi64(0xCD9E8D57));
    c0 = mixed(product1, c1, key[0]);
    c1 = product1;
    c2 = mixed(product0, c3, key[1]);
    c3 = product0;
  }
  const __m512i first = side_by_side(c0, c1), second = side_by_side(c2, c3);
  const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
  const __m512i high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  return {{_mm512_permutex2var_epi64(first, low, second),
           _mm512_permutex2var_epi64(first, high, second)}};
}

// (word + 1/2) / 2^32, rounded once, and less than 1.
inline __m512 uniform_of(__m512i words) {
  const __m512 high = _mm512_cvtepi32_ps(_mm512_srli_epi32(words, 16));
  const __m512 low = _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(0xffff)));
  const __m512 rest = _mm512_fmadd_ps(low, _mm512_set1_ps(0x1p-32f), _mm512_set1_ps(0x1p-33f));
  return _mm512_min_ps(_mm512_fmadd_ps(high, _mm512_set1_ps(0x1p-16f), rest),
                       _mm512_set1_ps(0x1.fffffep-1f));
}

inline __m512 gumbel_of(__m512 uniform) {
  const __m512 zero = _mm512_setzero_ps();
  return _mm512_sub_ps(zero, log(_mm512_sub_ps(zero, log_of_rest(uniform))));
}

// At least as much, for little: -log(-log(1 - u)) <= -log u, and that is of u's exponent.
inline __m512 at_least_gumbel_of(__m512 uniform) {
  constexpr float kMoreThanLn2 = 0.694f;
  return _mm512_mul_ps(_mm512_getexp_ps(uniform), _mm512_set1_ps(-kMoreThanLn2));
}

}  // namespace
}  // namespace slipstream
