#include "target.h"

#include "sampler.h"

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "exp_log.h"
#include "gumbel.h"
#include "logits.h"

namespace slipstream {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The best token of each row. Tokens may be offered in any order, by different threads.
class Winners {
 public:
  Winners(int rows, int64_t* tokens) : scores_(rows, -kInfinity), tokens_(tokens) {
    // Of a row without any score, as of all equal ones.
    std::fill(tokens, tokens + rows, 0);
  }

  void offer(int row, float score, int token) {
    const std::lock_guard lock(mutex_);
    const bool better = score > scores_[row];
    if (!better && !(score == scores_[row] && token < tokens_[row])) return;
    scores_[row] = score;
    tokens_[row] = token;
  }

 private:
  std::mutex mutex_;
  std::vector<float> scores_;
  int64_t* tokens_;
};

template <class Work>
void each_block(const Span& span, const Work& work) {
  for (int begin = span.begin; begin < span.end; begin += kVocabularyBlock) {
    work(begin, std::min(kVocabularyBlock, span.end - begin));
  }
}

// Offers the first of the largest.
void offer_likeliest(const LogitRows& logits, const Span& span, Winners& winners) {
  const float* const row = logits.row(span.row);
  float best = -kInfinity;
  int best_begin = span.begin;
  each_block(span, [&](int begin, int count) {
    const float largest = largest_of(row + begin, count);
    if (!(largest > best)) return;
    best = largest;
    best_begin = begin;
  });
  for (int i = best_begin; i < span.end; i += 16) {
    const __m512 part = _mm512_maskz_loadu_ps(first_lanes(span.end - i), row + i);
    const __mmask16 same = _mm512_mask_cmp_ps_mask(first_lanes(span.end - i), part,
                                                   _mm512_set1_ps(best), _CMP_EQ_OQ);
    if (same != 0) return winners.offer(span.row, best, i + std::countr_zero(uint32_t{same}));
  }
}

// The best score of each lane and its token, the first of equals.
struct Best {
  __m512 scores;
  __m512i tokens;

  Best() : scores(_mm512_set1_ps(-kInfinity)), tokens(_mm512_setzero_si512()) {}

  __mmask16 worse_than(__m512 seen, __mmask16 lanes) const {
    return _mm512_mask_cmp_ps_mask(lanes, seen, scores, _CMP_GT_OQ);
  }

  void see(__m512 seen, __mmask16 lanes, int token) {
    const __mmask16 better = worse_than(seen, lanes);
    const __m512i ids = _mm512_add_epi32(
        _mm512_set1_epi32(token),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    scores = _mm512_mask_mov_ps(scores, better, seen);
    tokens = _mm512_mask_mov_epi32(tokens, better, ids);
  }

  void offer_to(Winners& winners, int row) const {
    const float best = _mm512_reduce_max_ps(scores);
    if (best == -kInfinity) return;
    const __mmask16 same = _mm512_cmp_ps_mask(scores, _mm512_set1_ps(best), _CMP_EQ_OQ);
    winners.offer(row, best, _mm512_mask_reduce_min_epi32(same, tokens));
  }
};

// 32 tokens of a row and which of them are kept.
struct Scaled {
  __m512 logits[2];
  __mmask16 kept[2];

  Scaled(const float* row, int count, float temperature, float limit) {
    for (int half = 0; half < 2; ++half) {
      const int left = count - 16 * half;
      const __mmask16 lanes = left > 0 ? first_lanes(left) : 0;
      logits[half] = over(_mm512_maskz_loadu_ps(lanes, row + 16 * half), temperature);
      kept[half] =
          _mm512_mask_cmp_ps_mask(lanes, logits[half], _mm512_set1_ps(limit), _CMP_GE_OQ);
    }
  }
};

// Draws words for whole groups, and only for those of which something is kept; makes noise of them
// only where it might win.
void race(const LogitRows& rows, const Span& span, const Draw& draw, float temperature,
          float limit, Winners& winners) {
  const float* const row = rows.row(span.row);
  Best best;
  for (int token = span.begin; token < span.end; token += kGroup) {
    const Scaled scaled(row + token, span.end - token, temperature, limit);
    if ((scaled.kept[0] | scaled.kept[1]) == 0) continue;
    const Group drawn = words_of(draw, span.row, token);
    for (int half = 0; half < 2; ++half) {
      const __m512 uniform = uniform_of(drawn.halves[half]), logits = scaled.logits[half];
      const __m512 at_most = _mm512_add_ps(logits, at_least_gumbel_of(uniform));
      if (best.worse_than(at_most, scaled.kept[half]) == 0) continue;
      const __m512 scores = _mm512_add_ps(logits, gumbel_of(uniform));
      best.see(scores, scaled.kept[half], token + 16 * half);
    }
  }
  best.offer_to(winners, span.row);
}

// Writes the scores of a span; no words are drawn where nothing is kept.
void write_scores(const LogitRows& rows, const Span& span, const Draw& draw, float temperature,
                  float limit, float* scores) {
  const __m512 none = _mm512_set1_ps(-kInfinity);
  for (int token = span.begin; token < span.end; token += kGroup) {
    const Scaled scaled(rows.row(span.row) + token, span.end - token, temperature, limit);
    const bool any = (scaled.kept[0] | scaled.kept[1]) != 0;
    const Group drawn = any ? words_of(draw, span.row, token) : Group{};
    for (int half = 0; half < 2; ++half) {
      const int left = span.end - token - 16 * half;
      const __m512 noise = any ? gumbel_of(uniform_of(drawn.halves[half])) : none;
      const __m512 sums = _mm512_add_ps(scaled.logits[half], noise);
      _mm512_mask_storeu_ps(scores + token + 16 * half, left > 0 ? first_lanes(left) : 0,
                            _mm512_mask_mov_ps(none, scaled.kept[half], sums));
    }
  }
}

// A block's sum of e^(logit - largest).
struct BlockSum {
  float largest;
  float sum;
};

BlockSum sum_block(const float* logits, int count) {
  const float largest = largest_of(logits, count);
  // Nothing but -infinity, or NaN: the difference would be NaN for both.
  const __m512 top = _mm512_set1_ps(largest == -kInfinity ? 0.0f : largest);
  __m512 sums = _mm512_setzero_ps();
  for (int i = 0; i < count; i += 16) {
    const __mmask16 lanes = first_lanes(count - i);
    const __m512 weights = exp(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, logits + i), top));
    sums = _mm512_mask_add_ps(sums, lanes, sums, weights);
  }
  return {largest, _mm512_reduce_add_ps(sums)};
}

float log_sum(const BlockSum* blocks, int count) {
  float largest = -kInfinity;
  for (int i = 0; i < count; ++i) largest = std::max(largest, blocks[i].largest);
  double total = 0;
  for (int i = 0; i < count; ++i) {
    // A block of -infinity adds zero, unless it holds NaN.
    const bool none = blocks[i].largest == -kInfinity;
    total += blocks[i].sum * (none ? 1.0 : std::exp(double(blocks[i].largest) - largest));
  }
  return float(largest + std::log(total));
}

}  // namespace

RoundKeys::RoundKeys(uint64_t seed) {
  for (uint32_t round = 0; round < kRounds; ++round) {
    words[round][0] = uint32_t(seed) + round * 0x9E3779B9u;
    words[round][1] = uint32_t(seed >> 32) + round * 0xBB67AE85u;
  }
}

void likeliest_tokens(const LogitRows& logits, int64_t* tokens) {
  Winners winners(logits.rows, tokens);
  each_span(logits, kFewToCompare,
            [&](const Span& span) { offer_likeliest(logits, span, winners); });
}

void agreement_tokens(const LogitRows& logits, const Draw& draw, const Filters& filters,
                      int64_t* tokens) {
  const std::vector<float> limits = limits_of(logits, filters);
  Winners winners(logits.rows, tokens);
  each_span(logits, kFewToDraw, [&](const Span& span) {
    race(logits, span, draw, filters.temperature, limits[span.row], winners);
  });
}

void agreement_scores(const LogitRows& logits, const Draw& draw, const Filters& filters,
                      float* scores) {
  const std::vector<float> limits = limits_of(logits, filters);
  each_span(logits, kFewToDraw, [&](const Span& span) {
    write_scores(logits, span, draw, filters.temperature, limits[span.row],
                 scores + int64_t(span.row) * logits.vocab);
  });
}

void log_normalizers(const LogitRows& logits, float* sums) {
  const int blocks = logits.blocks();
  std::vector<BlockSum> block_sums(size_t(logits.rows) * blocks);
  each_span(logits, kFewToSum, [&](const Span& span) {
    const float* const row = logits.row(span.row);
    BlockSum* const sums_of_row = &block_sums[size_t(span.row) * blocks];
    each_block(span, [&](int begin, int count) {
      sums_of_row[begin / kVocabularyBlock] = sum_block(row + begin, count);
    });
  });
  for (int row = 0; row < logits.rows; ++row) {
    sums[row] = log_sum(&block_sums[size_t(row) * blocks], blocks);
  }
}

void draw_noise(const Draw& draw, int rows, int vocab, float* uniform, float* noise) {
  for (int row = 0; row < rows; ++row) {
    for (int token = 0; token < vocab; token += kGroup) {
      const Group drawn = words_of(draw, row, token);
      for (int first = token; first < std::min(vocab, token + kGroup); first += 16) {
        const __m512 values = uniform_of(drawn.halves[(first - token) / 16]);
        const int64_t place = int64_t(row) * vocab + first;
        _mm512_mask_storeu_ps(uniform + place, first_lanes(vocab - first), values);
        _mm512_mask_storeu_ps(noise + place, first_lanes(vocab - first), gumbel_of(values));
      }
    }
  }
}

}  // namespace slipstream
