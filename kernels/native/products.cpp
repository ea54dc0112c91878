#include "target.h"

#include "products.h"

#include "cpu.h"

namespace slipstream {

int8_t input_offset() { return current_isa() == Isa::kAmx ? 0 : int8_t(128); }

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
