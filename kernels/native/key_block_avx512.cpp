// The products of attention on AVX-512 without instructions for bf16.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")

#include "pair_dot.h"
#include "key_block_vector.h"

namespace slipstream::avx512 {

void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  score_on_vectors<FloatDot>(block, queries, scores);
}

void add_values(const KeyBlock& block, const Weights& weights, unsigned lanes, Outputs& outputs) {
  add_values_on_vectors<FloatDot>(block, weights, lanes, outputs);
}

}  // namespace slipstream::avx512
