#include "products.h"

#include "cpu.h"

namespace slipstream {

void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  if (current_isa() == Isa::kAmx) {
    amx::multiply(w, pair, x, rows, panel);
  } else {
    avx512::multiply(w, pair, x, rows, panel);
  }
}

}  // namespace slipstream
