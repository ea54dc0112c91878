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

// Weights of 8 bits are multiplied with activations of 15: q = 128 * high + low, both of 8 bits. A
// panel holds the high parts of its rows and then the low ones. 8 bits alone would not do: a few
// inputs of a row are so large that all others would vanish.
constexpr int kLowPart = 128;

// How often a row occurs in a panel, and how many rows a panel holds.
constexpr int parts(Format format) { return format == Format::kInt8 ? 2 : 1; }
constexpr int panel_rows(Format format) { return kPanelRows / parts(format); }

// What is added to both parts: 128 where products are made on vectors, for VNNI multiplies unsigned
// with signed bytes; nothing for AMX.
int8_t input_offset();

// Rows of one panel as products read them: bf16, or int8 with a scale a row. They begin `stride` bytes
// apart, and bytes from the last input to the end of the last tile are zero: weights there are, too.
struct Activations {
  const std::byte* data;
  int64_t stride;
  const float* scales;  // int8 only
};

using Panel = float[kPanelRows][kPanelColumns];

// panel[r][c] = sum over inputs of x[r] * w[32 * pair + c], for up to panel_rows(w.format) rows, without
// the bias. Called within a TileScope of rows * parts(w.format).
void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel);

namespace amx {
void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel);
}

namespace avx512 {
void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel);
}

namespace avx512_bf16 {
void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel);
}

// The sums of a panel's high and low parts are integers in its first and its other rows:
// y = (128 * high + low) * (the row's scale) * (the output's scale).
void join_parts(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel);

}  // namespace slipstream
