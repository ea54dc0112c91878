// The products of the instruction set in use, on CPUs with AVX-512.
#include "cpu.h"
#include "key_block.h"
#include "products.h"

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

void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  switch (current_isa()) {
    case Isa::kAmx:
      return amx::score(block, queries, scores);
    case Isa::kAvx512Bf16:
      return avx512_bf16::score(block, queries, scores);
    default:
      return avx512::score(block, queries, scores);
  }
}

void add_values(const KeyBlock& block, const Weights& weights, unsigned lanes, Outputs& outputs) {
  switch (current_isa()) {
    case Isa::kAmx:
      return amx::add_values(block, weights, outputs);
    case Isa::kAvx512Bf16:
      return avx512_bf16::add_values(block, weights, lanes, outputs);
    default:
      return avx512::add_values(block, weights, lanes, outputs);
  }
}

}  // namespace slipstream
