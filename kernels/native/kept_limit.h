// What the filters keep of a vocabulary: tokens whose logit / T reaches a limit. See
// `filtered_logits` in kernels/sampling.py.
#pragma once

#include <vector>

#include "vocabulary.h"

namespace slipstream {

struct Filters {
  float temperature;
  float log_min_p;  // -infinity turns it off
  int64_t top_k;    // and 0 or less this
  double top_p;     // and 1 this
};

// Returns what logit / T must reach, of every row.
std::vector<float> limits_of(const LogitRows& logits, const Filters& filters);

}  // namespace slipstream
