// Products on AVX2.
#include "target.h"

#include "pair_dot.h"
#include "products_vector.h"

namespace slipstream {

void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  multiply_on_vectors<FloatDot>(w, pair, x, rows, panel);
}

}  // namespace slipstream
