#include "target.h"

#include "panels.h"

#include "team.h"
#include "tiles.h"
#include "vector.h"

namespace slipstream {
namespace {

// 16 columns of a row of a panel, with the bias.
__m512 biased(const PackedMatrix& w, int pair, const Panel panel, int row, int column) {
  const __m512 sums = _mm512_loadu_ps(panel[row] + column);
  if (w.bias.empty()) return sums;
  return _mm512_add_ps(sums, _mm512_loadu_ps(&w.bias[pair * kPairOutputs + column]));
}

template <class Combine>
void each_vector(const PackedMatrix& w, int pair, const Panel panel, int rows, const Results& y,
                 const Combine& combine) {
  for (int column = 0; column < kPanelColumns; column += 16) {
    const int output = pair * kPairOutputs + column;
    const __mmask16 lanes = output < w.outputs ? first_lanes(w.outputs - output) : 0;
    for (int row = 0; row < rows; ++row) {
      float* const target = y.data + row * y.stride + output;
      const __m512 x = biased(w, pair, panel, row, column);
      _mm512_mask_storeu_ps(target, lanes, combine(x, target, lanes));
    }
  }
}

}  // namespace

void store_panel(const PackedMatrix& w, int pair, const Panel panel, int rows, const Results& y) {
  each_vector(w, pair, panel, rows, y, [&](__m512 x, const float*, __mmask16) { return x; });
}

void add_panel(const PackedMatrix& w, int pair, const Panel panel, int rows, const Results& y) {
  each_vector(w, pair, panel, rows, y, [&](__m512 x, const float* target, __mmask16 lanes) {
    return _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, target), x);
  });
}

void gate_panel(const PackedMatrix& w, int pair, const Panel panel, int rows, const Results& y) {
  for (int row = 0; row < rows; ++row) {
    const __m512 gate = biased(w, pair, panel, row, 0), up = biased(w, pair, panel, row, 16);
    _mm512_storeu_ps(y.data + row * y.stride + pair * kTileOutputs,
                     _mm512_mul_ps(silu(gate), up));
  }
}

void product(const PackedMatrix& w, const ActivationRows& x, int rows, int rank, PanelSink sink,
             const Results& y) {
  alignas(64) Panel panel;
  // The last panel of many is computed whole, over rows that nobody reads.
  const int in_panel = x.rows_in_panel();
  const TileScope scope(in_panel * parts(w.format));
  const Range pairs = Team::instance().share(w.pairs, rank);
  for (int pair = pairs.begin; pair < pairs.end; ++pair) {
    for (int row = 0; row < rows; row += in_panel) {
      multiply(w, pair, x.panel(row / in_panel), in_panel, panel);
      const int left = rows - row;
      sink(w, pair, panel, left < in_panel ? left : in_panel, y.from(row));
    }
  }
}

}  // namespace slipstream
