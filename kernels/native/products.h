// Products of activations with packed weights, one panel at a time.
//
// A row's result is a sum over its inputs in one order, whatever rows are beside it: that is what
// all of Slipstream's exactness rests on.
#pragma once

#include <cstdint>

#include "packed_matrix.h"

namespace slipstream {

constexpr int kPanelRows = 32;
constexpr int kPanelColumns = kPairOutputs;

// Rows as products read them: bf16, or int8 with a scale a row. They begin `stride` bytes apart and
// are zero from the last input to the end of the last tile.
struct Activations {
  const std::byte* data;
  int64_t stride;
  const float* scales;  // int8 only

  Activations from(int row) const {
    return {data + row * stride, stride, scales == nullptr ? nullptr : scales + row};
  }
};

using Panel = float[kPanelRows][kPanelColumns];

// panel[r][c] = sum over inputs of x[r] * w[32 * pair + c], for 1 to 32 rows, without the bias. Called
// within a TileScope of as many rows.
void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel);

namespace amx {
void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel);
}

namespace avx512 {
void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel);
}

}  // namespace slipstream
