// The products of attention on AVX-512 with instructions for bf16.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx2,avx512bf16")

#include "key_block_vector.h"
#include "pair_dot_bf16.h"

namespace slipstream::avx512_bf16 {

void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  score_on_vectors<Bf16Dot>(block, queries, scores);
}

void add_values(const KeyBlock& block, const Weights& weights, unsigned lanes, Outputs& outputs) {
  add_values_on_vectors<Bf16Dot>(block, weights, lanes, outputs);
}

}  // namespace slipstream::avx512_bf16
