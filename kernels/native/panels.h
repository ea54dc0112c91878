// A product of rows with a packed matrix, panel after panel, and what becomes of each panel.
#pragma once

#include <cstdint>

#include "packed_matrix.h"
#include "products.h"
#include "rows.h"

namespace slipstream {

// Where a product's results go: [rows] that begin `stride` elements apart.
struct Results {
  float* data;
  int64_t stride;

  Results from(int row) const { return {data + row * stride, stride}; }
};

using PanelSink = void (*)(const PackedMatrix& w, int pair, const Panel panel, int rows,
                           const Results& y);

// y = panel + bias
void store_panel(const PackedMatrix& w, int pair, const Panel panel, int rows, const Results& y);

// y = y + panel + bias
void add_panel(const PackedMatrix& w, int pair, const Panel panel, int rows, const Results& y);

// y = silu(gate) * up, the two halves of every panel: half as many results as outputs.
void gate_panel(const PackedMatrix& w, int pair, const Panel panel, int rows, const Results& y);

// The calling thread's share of the outputs, for all rows. No thread waits for another.
void product(const PackedMatrix& w, const ActivationRows& x, int rows, int rank, PanelSink sink,
             const Results& y);

}  // namespace slipstream
