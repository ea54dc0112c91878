// What filters and sampler both do with logits. Include it after target.h.
#pragma once

#include <limits>

#include "vector.h"

namespace slipstream {
namespace {

// The largest of some logits; NaN is none of them, and none at all makes -infinity.
inline float largest_of(const float* logits, int count) {
  __m512 maxima[4];
  for (__m512& maximum : maxima) maximum = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  int i = 0;
  for (; i + 64 <= count; i += 64) {
    for (int part = 0; part < 4; ++part) {
      // Of NaN the maximum is the second.
      maxima[part] = _mm512_max_ps(_mm512_loadu_ps(logits + i + 16 * part), maxima[part]);
    }
  }
  for (; i < count; i += 16) {
    const __mmask16 lanes = first_lanes(count - i);
    const __m512 last = _mm512_mask_loadu_ps(maxima[0], lanes, logits + i);
    maxima[0] = _mm512_max_ps(last, maxima[0]);
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(maxima[0], maxima[1]),
                                            _mm512_max_ps(maxima[2], maxima[3])));
}

// logits / T, rounded as the reference does.
inline __m512 over(__m512 logits, float temperature) {
  return temperature == 1 ? logits : _mm512_div_ps(logits, _mm512_set1_ps(temperature));
}

}  // namespace
}  // namespace slipstream
