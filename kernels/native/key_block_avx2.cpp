// The products of attention on AVX2.
#include "target.h"

#include "pair_dot.h"
#include "key_block_vector.h"

namespace slipstream {

void score(const KeyBlock& block, const PairedQueries& queries, Scores& scores) {
  score_on_vectors<FloatDot>(block, queries, scores);
}

void add_values(const KeyBlock& block, const Weights& weights, unsigned lanes, Outputs& outputs) {
  add_values_on_vectors<FloatDot>(block, weights, lanes, outputs);
}

}  // namespace slipstream
