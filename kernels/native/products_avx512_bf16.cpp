// Products on AVX-512 with instructions for bf16.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,avx2,avx512bf16")

#include "products_vector.h"
#include "pair_dot_bf16.h"

namespace slipstream::avx512_bf16 {

void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  multiply_on_vectors<Bf16Dot>(w, pair, x, rows, panel);
}

}  // namespace slipstream::avx512_bf16
