// Products on AVX-512 without instructions for bf16.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,avx2")

#include "pair_dot.h"
#include "products_vector.h"

namespace slipstream::avx512 {

void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  multiply_on_vectors<FloatDot>(w, pair, x, rows, panel);
}

}  // namespace slipstream::avx512
