#include "target.h"

#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vector.h"

namespace slipstream {
namespace {

// A row of zeros has some scale.
constexpr float kSmallest = 1e-10f;
constexpr float kLargest = __FLT_MAX__;
// 127 high parts of 128.
constexpr float kSteps = 127 * kLowPart;

// 1 / sqrt(mean(x^2) + eps), summed in one order whatever else is computed.
float inverse_rms(const float* x, int count, float eps) {
  __m512 sums = _mm512_setzero_ps();
  for (int i = 0; i < count; i += 16) {
    const __m512 part = _mm512_maskz_loadu_ps(first_lanes(count - i), x + i);
    sums = _mm512_fmadd_ps(part, part, sums);
  }
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(sums) / float(count) + eps);
}

__m512 normed(const float* x, const float* weight, __m512 scale, __mmask16 lanes) {
  const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x), scale);
  return _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(lanes, weight));
}

// q = round(x * 16256 / max |x|) in two parts: q = 128 * high + low, each stored with input_offset().
// Returns the scale.
template <class Values>
float quantize(int8_t* high, int8_t* low, int count, const Values& values) {
  __m512 maxima = _mm512_setzero_ps();
  __mmask16 infinite = 0;
  for (int i = 0; i < count; i += 16) {
    const __m512 sizes = _mm512_abs_ps(values(i, first_lanes(count - i)));
    infinite |= _mm512_cmp_ps_mask(sizes, _mm512_set1_ps(kLargest), _CMP_NLE_UQ);
    maxima = _mm512_max_ps(maxima, sizes);
  }
  // What is not finite has no place among integers: the row's results become NaN.
  if (infinite != 0) return __builtin_nanf("");
  const float largest = std::max(_mm512_reduce_max_ps(maxima), kSmallest);
  const __m512 factor = _mm512_set1_ps(kSteps / largest);
  // Of 8 bits: to add 128 is to turn the highest.
  const __m128i offset = _mm_set1_epi8(input_offset());
  for (int i = 0; i < count; i += 16) {
    const __mmask16 lanes = first_lanes(count - i);
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(values(i, lanes), factor));
    const __m512i top = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(64)), 7);
    const __m512i rest = _mm512_sub_epi32(q, _mm512_slli_epi32(top, 7));
    _mm_mask_storeu_epi8(high + i, lanes, _mm_xor_si128(_mm512_cvtepi32_epi8(top), offset));
    _mm_mask_storeu_epi8(low + i, lanes, _mm_xor_si128(_mm512_cvtepi32_epi8(rest), offset));
  }
  return largest / kSteps;
}

}  // namespace

void rms_norm(const float* x, const float* weight, int count, float eps, float* y) {
  const __m512 scale = _mm512_set1_ps(inverse_rms(x, count, eps));
  for (int i = 0; i < count; i += 16) {
    const __mmask16 lanes = first_lanes(count - i);
    _mm512_mask_storeu_ps(y + i, lanes, normed(x + i, weight + i, scale, lanes));
  }
}

void rotate(float* x, const uint16_t* cos, const uint16_t* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += 16) {
    const __mmask16 lanes = first_lanes(half - i);
    const __m512 x1 = _mm512_maskz_loadu_ps(lanes, x + i);
    const __m512 x2 = _mm512_maskz_loadu_ps(lanes, x + half + i);
    const __m512 y1 = _mm512_fmsub_ps(x1, load_bf16(cos + i, lanes),
                                      _mm512_mul_ps(x2, load_bf16(sin + i, lanes)));
    const __m512 y2 = _mm512_fmadd_ps(x2, load_bf16(cos + half + i, lanes),
                                      _mm512_mul_ps(x1, load_bf16(sin + half + i, lanes)));
    _mm512_mask_storeu_ps(x + i, lanes, y1);
    _mm512_mask_storeu_ps(x + half + i, lanes, y2);
  }
}

void to_bf16(const float* x, int count, uint16_t* y) {
  for (int i = 0; i < count; i += 16) {
    const __mmask16 lanes = first_lanes(count - i);
    store_bf16(y + i, _mm512_maskz_loadu_ps(lanes, x + i), lanes);
  }
}

void to_side_of_pairs(const float* x, int count, int side, uint16_t* pairs) {
  for (int i = 0; i < count; i += 16) {
    const __m512 part = _mm512_maskz_loadu_ps(first_lanes(count - i), x + i);
    store_side(pairs + 2 * i, round_to_bf16(part), side, count - i);
  }
}

void ActivationRows::fit(int rows, const PackedMatrix& w) {
  stride_ = w.row_bytes();
  parts_ = parts(w.format);
  rows_in_panel_ = std::clamp(rows, 1, panel_rows(w.format));
  const size_t whole_panels = (rows + rows_in_panel_ - 1) / rows_in_panel_ * rows_in_panel_;
  const size_t size = whole_panels * parts_ * stride_;
  if (size > size_) {
    data_ = allocate_huge(size);
    size_ = size;
  }
  if (scales_.size() < whole_panels) scales_.resize(whole_panels);
}

void ActivationRows::write(int row, const float* x, int count) {
  round_row(row, count, [&](int i, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, x + i); });
}

void ActivationRows::write_norm(int row, const float* x, const float* weight, int count,
                                float eps) {
  const __m512 scale = _mm512_set1_ps(inverse_rms(x, count, eps));
  round_row(row, count, [&](int i, __mmask16 lanes) {
    return normed(x + i, weight + i, scale, lanes);
  });
}

template <class Values>
void ActivationRows::round_row(int row, int count, const Values& values) {
  std::byte* const first = target(row);
  // Another layer's numbers may lie beyond the last input.
  const int64_t used = count * int64_t(parts_ == 1 ? sizeof(uint16_t) : sizeof(int8_t));
  std::memset(first + used, 0, stride_ - used);
  if (parts_ == 1) {
    for (int i = 0; i < count; i += 16) {
      const __mmask16 lanes = first_lanes(count - i);
      store_bf16(reinterpret_cast<uint16_t*>(first) + i, values(i, lanes), lanes);
    }
    return;
  }
  std::byte* const second = first + rows_in_panel_ * stride_;
  std::memset(second + used, 0, stride_ - used);
  scales_[row] = quantize(reinterpret_cast<int8_t*>(first), reinterpret_cast<int8_t*>(second),
                          count, values);
}

}  // namespace slipstream
