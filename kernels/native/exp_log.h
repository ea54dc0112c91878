// Exponentials and logarithms, within about one unit in the last place. Include it after target.h.
//
// The polynomials are those of Cephes' expf and logf.
#pragma once

#include "vector.h"

namespace slipstream {
namespace {

constexpr float kLn2High = 0.693359375f;
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kSqrt2 = 1.41421356237309504880f;

// e^x of an x below 88. That of -infinity is zero, that of NaN is NaN.
inline __m512 exp(__m512 x) {
  // Zero from here on; -infinity itself would make NaN.
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-150.0f), x);
  const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(bounded, _mm512_set1_ps(kLog2E)),
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(whole, _mm512_set1_ps(kLn2High), bounded);
  r = _mm512_fnmadd_ps(whole, _mm512_set1_ps(kLn2Low), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
  // What rounds to zero, as most of a filtered vocabulary does, is slow to scale to it.
  const __mmask16 not_zero = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-104.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(not_zero, _mm512_add_ps(p, _mm512_set1_ps(1.0f)), whole);
}

// log x of a positive normal x, of which x - 1 is `less_one` exactly where x is near 1.
inline __m512 log(__m512 x, __m512 less_one) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 mantissa = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_zero);
  const __mmask16 large = _mm512_cmp_ps_mask(mantissa, _mm512_set1_ps(kSqrt2), _CMP_GT_OQ);
  const __m512 halved = _mm512_mask_mul_ps(mantissa, large, mantissa, _mm512_set1_ps(0.5f));
  const __m512 floored = _mm512_getexp_ps(x);
  const __m512 exponent = _mm512_mask_add_ps(floored, large, floored, one);
  const __mmask16 near_one = _mm512_cmp_ps_mask(exponent, _mm512_setzero_ps(), _CMP_EQ_OQ);
  const __m512 f = _mm512_mask_mov_ps(_mm512_sub_ps(halved, one), near_one, less_one);
  const __m512 square = _mm512_mul_ps(f, f);
  __m512 p = _mm512_set1_ps(7.0376836292e-2f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(-1.1514610310e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.1676998740e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(-1.2420140846e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.4249322787e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(-1.6668057665e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.0000714765e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(-2.4999993993e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(3.3333331174e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(-0.5f));
  p = _mm512_fmadd_ps(exponent, _mm512_set1_ps(kLn2Low), _mm512_mul_ps(p, square));
  return _mm512_fmadd_ps(exponent, _mm512_set1_ps(kLn2High), _mm512_add_ps(f, p));
}

// log x of a positive normal x.
inline __m512 log(__m512 x) { return log(x, _mm512_sub_ps(x, _mm512_set1_ps(1.0f))); }

// log(1 - x) of an x from 0 to less than 1.
inline __m512 log_of_rest(__m512 x) {
  return log(_mm512_sub_ps(_mm512_set1_ps(1.0f), x), _mm512_sub_ps(_mm512_setzero_ps(), x));
}

}  // namespace
}  // namespace slipstream
