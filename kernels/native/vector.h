// What several files need of vectors. Include it after target.h, or another `#pragma GCC target`.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace slipstream {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;

inline __m512 load_bf16(const uint16_t* source, __mmask16 mask) {
  const __m512i halves = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, source));
  return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}

// The bits of the nearest bf16, ties to even, in the upper halves. NaN stays NaN.
inline __m512i round_to_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_and_si512(kept, _mm512_set1_epi32(int(0xffff0000)));
}

inline __m256i to_bf16(__m512 x) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_to_bf16(x), 16));
}

inline void store_bf16(uint16_t* target, __m512 x, __mmask16 mask = 0xffff) {
  _mm256_mask_storeu_epi16(target, mask, to_bf16(x));
}

// Two vectors of finite numbers rounded to bf16, element by element side by side: (even, odd).
inline __m512i pairs_of_bf16(__m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
  __m512i bits[2] = {_mm512_castps_si512(even), _mm512_castps_si512(odd)};
  for (__m512i& side : bits) {
    const __m512i tie = _mm512_and_si512(_mm512_srli_epi32(side, 16), one);
    side = _mm512_add_epi32(_mm512_add_epi32(side, half), tie);
  }
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(bits[0], 16), bits[1]);
}

// Stores the upper halves of up to 16 elements on one side of as many pairs. The other side stays.
inline void store_side(uint16_t* pairs, __m512i upper, int side, int64_t count) {
  const __mmask32 there = count >= 16 ? ~__mmask32{0} : (__mmask32{1} << 2 * count) - 1;
  const __mmask32 lower_halves = 0x55555555;
  if (side == 0) {
    _mm512_mask_storeu_epi16(pairs, there & lower_halves, _mm512_srli_epi32(upper, 16));
  } else {
    _mm512_mask_storeu_epi16(pairs, there & ~lower_halves, upper);
  }
}

// 2^x of a finite x, within two units in the last place. (Cephes' polynomial of exp2f's fraction.)
inline __m512 exp2(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(1.535336188319500e-4f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.339887440266574e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618437357674640e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550332471162809e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402264791363012e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931472028550421e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

// x / (1 + exp(-x))
inline __m512 silu(__m512 x) {
  const __m512 e = exp2(_mm512_mul_ps(x, _mm512_set1_ps(-kLog2E)));
  return _mm512_div_ps(x, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
}

// Transposes 16 vectors of 16 elements of 32 bits.
inline void transpose(__m512i (&rows)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xffff : __mmask16((1u << count) - 1);
}

}  // namespace
}  // namespace slipstream
