// AVX-512's instructions that we use, on AVX2: a vector of 16 numbers is two of 8.
//
// They bear the names of the intrinsics, which they hide in our namespace, so that all other files
// are written once. They do what those do for what is asked of them here; where that is less than
// all, it is said.
#pragma once

#include <immintrin.h>

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>

#define SLIPSTREAM_INLINE __attribute__((always_inline)) inline

namespace slipstream {

struct __m512 {
  __m256 low, high;
};

struct __m512i {
  __m256i low, high;
};

// Masks of 16 lanes as vectors, all bits of a lane set or none.
struct Lanes16 {
  __m256i low, high;

  SLIPSTREAM_INLINE explicit Lanes16(unsigned mask)
      : low(spread(mask)), high(spread(mask >> 8)) {}

 private:
  static SLIPSTREAM_INLINE __m256i spread(unsigned mask) {
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(mask)), bits), bits);
  }
};

// Both halves of two vectors, or of three.
#define SLIPSTREAM_HALVES2(type, name, half)                       \
  SLIPSTREAM_INLINE type name(type a, type b) {                    \
    return {half(a.low, b.low), half(a.high, b.high)};             \
  }
#define SLIPSTREAM_HALVES3(type, name, half)                       \
  SLIPSTREAM_INLINE type name(type a, type b, type c) {            \
    return {half(a.low, b.low, c.low), half(a.high, b.high, c.high)}; \
  }
#define SLIPSTREAM_SHIFT(name, half)                               \
  SLIPSTREAM_INLINE __m512i name(__m512i a, int count) {           \
    return {half(a.low, count), half(a.high, count)};              \
  }

SLIPSTREAM_HALVES2(__m512, _mm512_add_ps, _mm256_add_ps)
SLIPSTREAM_HALVES2(__m512, _mm512_sub_ps, _mm256_sub_ps)
SLIPSTREAM_HALVES2(__m512, _mm512_mul_ps, _mm256_mul_ps)
SLIPSTREAM_HALVES2(__m512, _mm512_div_ps, _mm256_div_ps)
SLIPSTREAM_HALVES2(__m512, _mm512_min_ps, _mm256_min_ps)
SLIPSTREAM_HALVES2(__m512, _mm512_max_ps, _mm256_max_ps)
SLIPSTREAM_HALVES3(__m512, _mm512_fmadd_ps, _mm256_fmadd_ps)
SLIPSTREAM_HALVES3(__m512, _mm512_fmsub_ps, _mm256_fmsub_ps)
SLIPSTREAM_HALVES3(__m512, _mm512_fnmadd_ps, _mm256_fnmadd_ps)
SLIPSTREAM_HALVES2(__m512i, _mm512_add_epi32, _mm256_add_epi32)
SLIPSTREAM_HALVES2(__m512i, _mm512_sub_epi32, _mm256_sub_epi32)
SLIPSTREAM_HALVES2(__m512i, _mm512_add_epi64, _mm256_add_epi64)
SLIPSTREAM_HALVES2(__m512i, _mm512_and_si512, _mm256_and_si256)
SLIPSTREAM_HALVES2(__m512i, _mm512_or_si512, _mm256_or_si256)
SLIPSTREAM_HALVES2(__m512i, _mm512_mul_epu32, _mm256_mul_epu32)
SLIPSTREAM_HALVES2(__m512i, _mm512_unpacklo_epi32, _mm256_unpacklo_epi32)
SLIPSTREAM_HALVES2(__m512i, _mm512_unpackhi_epi32, _mm256_unpackhi_epi32)
SLIPSTREAM_HALVES2(__m512i, _mm512_unpacklo_epi64, _mm256_unpacklo_epi64)
SLIPSTREAM_HALVES2(__m512i, _mm512_unpackhi_epi64, _mm256_unpackhi_epi64)
SLIPSTREAM_SHIFT(_mm512_slli_epi16, _mm256_slli_epi16)
SLIPSTREAM_SHIFT(_mm512_srai_epi16, _mm256_srai_epi16)
SLIPSTREAM_SHIFT(_mm512_slli_epi32, _mm256_slli_epi32)
SLIPSTREAM_SHIFT(_mm512_srli_epi32, _mm256_srli_epi32)
SLIPSTREAM_SHIFT(_mm512_srai_epi32, _mm256_srai_epi32)
SLIPSTREAM_SHIFT(_mm512_slli_epi64, _mm256_slli_epi64)
SLIPSTREAM_SHIFT(_mm512_srli_epi64, _mm256_srli_epi64)

// Constants.

SLIPSTREAM_INLINE __m512 _mm512_set1_ps(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

SLIPSTREAM_INLINE __m512 _mm512_setzero_ps() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

SLIPSTREAM_INLINE __m512i _mm512_set1_epi32(int x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

SLIPSTREAM_INLINE __m512i _mm512_set1_epi64(int64_t x) {
  return {_mm256_set1_epi64x(x), _mm256_set1_epi64x(x)};
}

SLIPSTREAM_INLINE __m512i _mm512_setzero_si512() {
  return {_mm256_setzero_si256(), _mm256_setzero_si256()};
}

SLIPSTREAM_INLINE __m512i _mm512_setr_epi64(int64_t a, int64_t b, int64_t c, int64_t d, int64_t e,
                                            int64_t f, int64_t g, int64_t h) {
  return {_mm256_setr_epi64x(a, b, c, d), _mm256_setr_epi64x(e, f, g, h)};
}

SLIPSTREAM_INLINE __m512i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h,
                                            int i, int j, int k, int l, int m, int n, int o,
                                            int p) {
  return {_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p)};
}

// Loads and stores. Lanes that are masked off are neither read nor written.

SLIPSTREAM_INLINE __m512 _mm512_loadu_ps(const void* source) {
  const float* const at = static_cast<const float*>(source);
  return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)};
}

SLIPSTREAM_INLINE void _mm512_storeu_ps(void* target, __m512 x) {
  float* const at = static_cast<float*>(target);
  _mm256_storeu_ps(at, x.low);
  _mm256_storeu_ps(at + 8, x.high);
}

SLIPSTREAM_INLINE void _mm512_store_ps(void* target, __m512 x) { _mm512_storeu_ps(target, x); }

SLIPSTREAM_INLINE __m512i _mm512_loadu_si512(const void* source) {
  const __m256i* const at = static_cast<const __m256i*>(source);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

SLIPSTREAM_INLINE void _mm512_storeu_si512(void* target, __m512i x) {
  __m256i* const at = static_cast<__m256i*>(target);
  _mm256_storeu_si256(at, x.low);
  _mm256_storeu_si256(at + 1, x.high);
}

SLIPSTREAM_INLINE void _mm512_store_si512(void* target, __m512i x) {
  _mm512_storeu_si512(target, x);
}

SLIPSTREAM_INLINE __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* source) {
  if (mask == 0xffff) return _mm512_loadu_ps(source);
  const Lanes16 lanes(mask);
  return {_mm256_maskload_ps(source, lanes.low), _mm256_maskload_ps(source + 8, lanes.high)};
}

SLIPSTREAM_INLINE __m512i _mm512_maskz_loadu_epi32(__mmask16 mask, const void* source) {
  if (mask == 0xffff) return _mm512_loadu_si512(source);
  const int* const at = static_cast<const int*>(source);
  const Lanes16 lanes(mask);
  return {_mm256_maskload_epi32(at, lanes.low), _mm256_maskload_epi32(at + 8, lanes.high)};
}

SLIPSTREAM_INLINE void _mm512_mask_storeu_ps(float* target, __mmask16 mask, __m512 x) {
  if (mask == 0xffff) return _mm512_storeu_ps(target, x);
  const Lanes16 lanes(mask);
  _mm256_maskstore_ps(target, lanes.low, x.low);
  _mm256_maskstore_ps(target + 8, lanes.high, x.high);
}

// Element after element: AVX2 masks none that are smaller than 32 bits.
template <class Element, class Vector>
SLIPSTREAM_INLINE Vector load_some(uint32_t mask, const void* source) {
  Element elements[sizeof(Vector) / sizeof(Element)] = {};
  for (unsigned i = 0; i < sizeof(Vector) / sizeof(Element); ++i) {
    if (mask >> i & 1) elements[i] = static_cast<const Element*>(source)[i];
  }
  Vector loaded;
  std::memcpy(&loaded, elements, sizeof loaded);
  return loaded;
}

template <class Element, class Vector>
SLIPSTREAM_INLINE void store_some(void* target, uint32_t mask, Vector x) {
  Element elements[sizeof(Vector) / sizeof(Element)];
  std::memcpy(elements, &x, sizeof x);
  for (unsigned i = 0; i < sizeof(Vector) / sizeof(Element); ++i) {
    if (mask >> i & 1) static_cast<Element*>(target)[i] = elements[i];
  }
}

SLIPSTREAM_INLINE __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void* source) {
  return mask == ~__mmask32{0} ? _mm512_loadu_si512(source)
                               : load_some<uint16_t, __m512i>(mask, source);
}

SLIPSTREAM_INLINE __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void* source) {
  return mask == 0xffff ? _mm256_loadu_si256(static_cast<const __m256i*>(source))
                        : load_some<uint16_t, __m256i>(mask, source);
}

SLIPSTREAM_INLINE void _mm512_mask_storeu_epi16(void* target, __mmask32 mask, __m512i x) {
  store_some<uint16_t>(target, mask, x);
}

SLIPSTREAM_INLINE void _mm256_mask_storeu_epi16(void* target, __mmask16 mask, __m256i x) {
  if (mask == 0xffff) return _mm256_storeu_si256(static_cast<__m256i*>(target), x);
  store_some<uint16_t>(target, mask, x);
}

SLIPSTREAM_INLINE void _mm_mask_storeu_epi8(void* target, __mmask16 mask, __m128i x) {
  if (mask == 0xffff) return _mm_storeu_si128(static_cast<__m128i*>(target), x);
  store_some<uint8_t>(target, mask, x);
}

SLIPSTREAM_INLINE void _mm512_mask_compressstoreu_ps(void* target, __mmask16 mask, __m512 x) {
  float elements[16], *at = static_cast<float*>(target);
  _mm512_storeu_ps(elements, x);
  for (unsigned i = 0; i < 16; ++i) {
    if (mask >> i & 1) *at++ = elements[i];
  }
}

// Casts and conversions.

SLIPSTREAM_INLINE __m512 _mm512_castsi512_ps(__m512i x) {
  return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)};
}

SLIPSTREAM_INLINE __m512i _mm512_castps_si512(__m512 x) {
  return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)};
}

SLIPSTREAM_INLINE __m256 _mm512_castps512_ps256(__m512 x) { return x.low; }

SLIPSTREAM_INLINE __m256 _mm512_extractf32x8_ps(__m512 x, int half) {
  return half == 0 ? x.low : x.high;
}

SLIPSTREAM_INLINE __m512 _mm512_cvtepi32_ps(__m512i x) {
  return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)};
}

SLIPSTREAM_INLINE __m512i _mm512_cvtps_epi32(__m512 x) {
  return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)};
}

SLIPSTREAM_INLINE __m512i _mm512_cvttps_epi32(__m512 x) {
  return {_mm256_cvttps_epi32(x.low), _mm256_cvttps_epi32(x.high)};
}

SLIPSTREAM_INLINE __m512i _mm512_cvtepu16_epi32(__m256i x) {
  return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
          _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))};
}

SLIPSTREAM_INLINE __m512i _mm512_cvtepu8_epi16(__m256i x) {
  return {_mm256_cvtepu8_epi16(_mm256_castsi256_si128(x)),
          _mm256_cvtepu8_epi16(_mm256_extracti128_si256(x, 1))};
}

// The lower halves of 32 bits.
SLIPSTREAM_INLINE __m256i _mm512_cvtepi32_epi16(__m512i x) {
  const __m256i half = _mm256_set1_epi32(0xffff);
  const __m256i packed =
      _mm256_packus_epi32(_mm256_and_si256(x.low, half), _mm256_and_si256(x.high, half));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}

// The lowest quarters.
SLIPSTREAM_INLINE __m128i _mm512_cvtepi32_epi8(__m512i x) {
  const __m256i halves =
      _mm512_cvtepi32_epi16({_mm256_and_si256(x.low, _mm256_set1_epi32(0xff)),
                             _mm256_and_si256(x.high, _mm256_set1_epi32(0xff))});
  return _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

// Of what fits 63 bits.
SLIPSTREAM_INLINE __m512i _mm512_cvtps_epi64(__m256 x) {
  float values[8];
  int64_t whole[8];
  _mm256_storeu_ps(values, x);
  for (int i = 0; i < 8; ++i) whole[i] = std::llrint(values[i]);
  return _mm512_loadu_si512(whole);
}

// Comparisons and choices.

SLIPSTREAM_INLINE __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, const int relation) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, relation));
  return __mmask16(low | _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, relation)) << 8);
}

SLIPSTREAM_INLINE __mmask16 _mm512_mask_cmp_ps_mask(__mmask16 among, __m512 a, __m512 b,
                                                    const int relation) {
  return among & _mm512_cmp_ps_mask(a, b, relation);
}

SLIPSTREAM_INLINE __mmask16 _mm512_mask_cmpeq_epi32_mask(__mmask16 among, __m512i a, __m512i b) {
  const __m512i same = {_mm256_cmpeq_epi32(a.low, b.low), _mm256_cmpeq_epi32(a.high, b.high)};
  const __m512 lanes = _mm512_castsi512_ps(same);
  return __mmask16((_mm256_movemask_ps(lanes.low) | _mm256_movemask_ps(lanes.high) << 8) & among);
}

SLIPSTREAM_INLINE __mmask8 _mm512_cmpge_epi64_mask(__m512i a, __m512i b) {
  const int low = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(b.low, a.low)));
  const int high = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(b.high, a.high)));
  return __mmask8(~(low | high << 4));
}

SLIPSTREAM_INLINE __m512 _mm512_mask_mov_ps(__m512 otherwise, __mmask16 mask, __m512 x) {
  const Lanes16 lanes(mask);
  return {_mm256_blendv_ps(otherwise.low, x.low, _mm256_castsi256_ps(lanes.low)),
          _mm256_blendv_ps(otherwise.high, x.high, _mm256_castsi256_ps(lanes.high))};
}

SLIPSTREAM_INLINE __m512i _mm512_mask_mov_epi32(__m512i otherwise, __mmask16 mask, __m512i x) {
  return _mm512_castps_si512(
      _mm512_mask_mov_ps(_mm512_castsi512_ps(otherwise), mask, _mm512_castsi512_ps(x)));
}

SLIPSTREAM_INLINE __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 x) {
  return _mm512_mask_mov_ps(_mm512_setzero_ps(), mask, x);
}

SLIPSTREAM_INLINE __m512i _mm512_maskz_mov_epi64(__mmask8 mask, __m512i x) {
  unsigned pairs = 0;
  for (int i = 0; i < 8; ++i) pairs |= (mask >> i & 1) * 3u << 2 * i;
  return _mm512_mask_mov_epi32(_mm512_setzero_si512(), __mmask16(pairs), x);
}

SLIPSTREAM_INLINE __m512 _mm512_mask_loadu_ps(__m512 otherwise, __mmask16 mask, const void* source) {
  const __m512 loaded = _mm512_maskz_loadu_ps(mask, static_cast<const float*>(source));
  return _mm512_mask_mov_ps(otherwise, mask, loaded);
}

SLIPSTREAM_INLINE __m512 _mm512_mask_add_ps(__m512 otherwise, __mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(otherwise, mask, _mm512_add_ps(a, b));
}

SLIPSTREAM_INLINE __m512 _mm512_mask_mul_ps(__m512 otherwise, __mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(otherwise, mask, _mm512_mul_ps(a, b));
}

SLIPSTREAM_INLINE __m512 _mm512_mask_max_ps(__m512 otherwise, __mmask16 mask, __m512 a, __m512 b) {
  const __m512 larger = _mm512_max_ps(a, b);
  return mask == 0xffff ? larger : _mm512_mask_mov_ps(otherwise, mask, larger);
}

// Every other element of b.
SLIPSTREAM_INLINE __m512i _mm512_mask_blend_epi32(__mmask16 mask, __m512i a, __m512i b) {
  assert(mask == 0xaaaa);
  return {_mm256_blend_epi32(a.low, b.low, 0xaa), _mm256_blend_epi32(a.high, b.high, 0xaa)};
}

SLIPSTREAM_INLINE __m512i _mm512_mask_blend_epi16(__mmask32 mask, __m512i a, __m512i b) {
  assert(mask == 0xaaaaaaaa);
  return {_mm256_blend_epi16(a.low, b.low, 0xaa), _mm256_blend_epi16(a.high, b.high, 0xaa)};
}

// Every other quarter of a and then of b: 0x88 the even ones, 0xdd the odd ones.
SLIPSTREAM_INLINE __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, const int order) {
  assert(order == 0x88 || order == 0xdd);
  if (order == 0x88) {
    return {_mm256_permute2x128_si256(a.low, a.high, 0x20),
            _mm256_permute2x128_si256(b.low, b.high, 0x20)};
  }
  return {_mm256_permute2x128_si256(a.low, a.high, 0x31),
          _mm256_permute2x128_si256(b.low, b.high, 0x31)};
}

SLIPSTREAM_INLINE __m512i _mm512_permutex2var_epi64(__m512i a, __m512i order, __m512i b) {
  int64_t both[16], places[8], found[8];
  _mm512_storeu_si512(both, a);
  _mm512_storeu_si512(both + 8, b);
  _mm512_storeu_si512(places, order);
  for (int i = 0; i < 8; ++i) found[i] = both[places[i]];
  return _mm512_loadu_si512(found);
}

// The exclusive or of all three.
SLIPSTREAM_INLINE __m512i _mm512_ternarylogic_epi64(__m512i a, __m512i b, __m512i c, const int table) {
  assert(table == 0x96);
  return {_mm256_xor_si256(_mm256_xor_si256(a.low, b.low), c.low),
          _mm256_xor_si256(_mm256_xor_si256(a.high, b.high), c.high)};
}

// Over all lanes, halves first: in one order, whatever is in them.

SLIPSTREAM_INLINE float _mm512_reduce_add_ps(__m512 x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

SLIPSTREAM_INLINE float _mm512_reduce_max_ps(__m512 x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

SLIPSTREAM_INLINE int64_t _mm512_reduce_add_epi64(__m512i x) {
  int64_t sums[4];
  const __m256i four = _mm256_add_epi64(x.low, x.high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), four);
  return sums[0] + sums[1] + sums[2] + sums[3];
}

SLIPSTREAM_INLINE int _mm512_mask_reduce_min_epi32(__mmask16 mask, __m512i x) {
  int values[16], least = INT32_MAX;
  _mm512_storeu_si512(values, x);
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) && values[i] < least) least = values[i];
  }
  return least;
}

// Floating point.

SLIPSTREAM_INLINE __m512 _mm512_abs_ps(__m512 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}

SLIPSTREAM_INLINE __m512 _mm512_roundscale_ps(__m512 x, const int rounding) {
  return {_mm256_round_ps(x.low, rounding), _mm256_round_ps(x.high, rounding)};
}

// Of positive normal numbers.
SLIPSTREAM_INLINE __m512 _mm512_getexp_ps(__m512 x) {
  const __m512i biased = _mm512_srli_epi32(_mm512_castps_si512(x), 23);
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(biased, _mm512_set1_epi32(127)));
}

// Of positive normal numbers, from 1 to 2.
SLIPSTREAM_INLINE __m512 _mm512_getmant_ps(__m512 x, int, int) {
  const __m512i digits =
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x007fffff));
  return _mm512_castsi512_ps(_mm512_or_si512(digits, _mm512_set1_epi32(0x3f800000)));
}

SLIPSTREAM_INLINE __m512 power_of_two(__m512i exponent) {
  const __m512i biased = _mm512_add_epi32(exponent, _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}

// x 2^whole of an x near 1, in two steps that neither vanish nor overflow before the result does.
SLIPSTREAM_INLINE __m512 _mm512_scalef_ps(__m512 x, __m512 whole) {
  const __m512 bounded =
      _mm512_max_ps(_mm512_min_ps(whole, _mm512_set1_ps(254.0f)), _mm512_set1_ps(-252.0f));
  const __m512i exponent = _mm512_cvtps_epi32(bounded);
  const __m512i half = _mm512_srai_epi32(exponent, 1);
  const __m512 first = _mm512_mul_ps(x, power_of_two(half));
  return _mm512_mul_ps(first, power_of_two(_mm512_sub_epi32(exponent, half)));
}

SLIPSTREAM_INLINE __m512 _mm512_maskz_scalef_ps(__mmask16 mask, __m512 x, __m512 whole) {
  return _mm512_maskz_mov_ps(mask, _mm512_scalef_ps(x, whole));
}

// Sums of four products of unsigned and signed bytes, exact: AVX2's own saturate on the way.
SLIPSTREAM_INLINE __m256i add_products_of_bytes(__m256i sum, __m256i a, __m256i b) {
  const __m256i even_a = _mm256_and_si256(a, _mm256_set1_epi16(0xff));
  const __m256i even_b = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8);
  const __m256i odd_a = _mm256_srli_epi16(a, 8), odd_b = _mm256_srai_epi16(b, 8);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even_a, even_b));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(odd_a, odd_b));
}

SLIPSTREAM_HALVES3(__m512i, _mm512_dpbusd_epi32, add_products_of_bytes)

#undef SLIPSTREAM_HALVES2
#undef SLIPSTREAM_HALVES3
#undef SLIPSTREAM_SHIFT
#undef SLIPSTREAM_INLINE

}  // namespace slipstream
