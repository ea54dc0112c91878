// Sums of products of 16 pairs of bf16, the step that all products on vectors are made of.
#pragma once

#include <immintrin.h>

namespace slipstream {
namespace {

inline __m512 even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }

inline __m512 odd(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000))));
}

// In float32.
struct FloatDot {
  static __m512 add(__m512 sum, __m512i a, __m512i b) {
    sum = _mm512_fmadd_ps(even(a), even(b), sum);
    return _mm512_fmadd_ps(odd(a), odd(b), sum);
  }
};

}  // namespace
}  // namespace slipstream
