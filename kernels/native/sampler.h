// Agreement sampling and log-likelihoods of whole rows of logits; see kernels/sampling.py.
//
// A row's results never depend on the rows beside it or on the number of threads: sums are of whole
// blocks of the vocabulary in one order, or of integers, and of equals the smallest token is it.
#pragma once

#include <cstdint>
#include <vector>

#include "kept_limit.h"
#include "vocabulary.h"

namespace slipstream {

// The cipher's keys of every round. Of 64 bits, so that it reads them from memory as they are.
struct RoundKeys {
  static constexpr int kRounds = 10;

  explicit RoundKeys(uint64_t seed);

  int64_t words[kRounds][2];
};

// Where the noise of each row is drawn: its seed and its position.
struct Draw {
  Draw(const int64_t* seeds, const int64_t* positions, int rows)
      : keys(seeds, seeds + rows), positions(positions) {}

  std::vector<RoundKeys> keys;
  const int64_t* positions;
};

// tokens[row] = argmax of the logits
void likeliest_tokens(const LogitRows& logits, int64_t* tokens);

// tokens[row] = argmax of logits / T + noise among those that the filters keep
void agreement_tokens(const LogitRows& logits, const Draw& draw, const Filters& filters,
                      int64_t* tokens);

// scores[row][token] = what agreement_tokens takes the largest of, -infinity outside the filters
void agreement_scores(const LogitRows& logits, const Draw& draw, const Filters& filters,
                      float* scores);

// sums[row] = log of the sum of e^logit
void log_normalizers(const LogitRows& logits, float* sums);

// The uniforms and the noise of the tokens of a vocabulary, [rows][vocab] each. For tests.
void draw_noise(const Draw& draw, int rows, int vocab, float* uniform, float* noise);

}  // namespace slipstream
