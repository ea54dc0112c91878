#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")

#include "products.h"

#include <immintrin.h>

#include "cpu.h"

namespace slipstream {

void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  switch (current_isa()) {
    case Isa::kAmx:
      return amx::multiply(w, pair, x, rows, panel);
    case Isa::kAvx512Bf16:
      return avx512_bf16::multiply(w, pair, x, rows, panel);
    default:
      return avx512::multiply(w, pair, x, rows, panel);
  }
}

void join_parts(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  const float* const scales = w.scales.data() + pair * kPairOutputs;
  const __m512 weight = _mm512_set1_ps(kLowPart);
  for (int row = 0; row < rows; ++row) {
    const __m512 row_scale = _mm512_set1_ps(x.scales[row]);
    for (int column = 0; column < kPanelColumns; column += 16) {
      const __m512 high = _mm512_cvtepi32_ps(_mm512_loadu_si512(panel[row] + column));
      const __m512 low = _mm512_cvtepi32_ps(_mm512_loadu_si512(panel[rows + row] + column));
      const __m512 sums = _mm512_fmadd_ps(high, weight, low);
      const __m512 scaled = _mm512_mul_ps(sums, row_scale);
      _mm512_storeu_ps(panel[row] + column,
                       _mm512_mul_ps(scaled, _mm512_loadu_ps(scales + column)));
    }
  }
}

}  // namespace slipstream
