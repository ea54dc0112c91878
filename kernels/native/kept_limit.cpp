#include "target.h"

#include "kept_limit.h"

#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "exp_log.h"
#include "logits.h"

namespace slipstream {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Buckets of logits by their distance from the likeliest; the last one holds all that is far.
constexpr int kBuckets = 1024;
constexpr float kBucketsPerUnit = 32;
constexpr float kFar = 1e4f;

// What of a token counts towards a filter: top_k's limit is reached by tokens, top_p's by mass.
enum class Measure { kTokens, kMass };

// Of 16 tokens.
struct Masses {
  __m512i halves[2];
};

// e^-distance in units of 2^-44. As integers, sums of a whole vocabulary do not depend on an order.
Masses masses_of(__m512 distance) {
  const __m512 mass =
      _mm512_mul_ps(exp(_mm512_sub_ps(_mm512_setzero_ps(), distance)), _mm512_set1_ps(0x1p44f));
  return {{_mm512_cvtps_epi64(_mm512_castps512_ps256(mass)),
           _mm512_cvtps_epi64(_mm512_extractf32x8_ps(mass, 1))}};
}

// 16 tokens, those of them that are still kept, and their distance from the likeliest.
struct Tokens {
  __m512 logits;
  __m512 distance;
  __mmask16 kept;

  __m512i buckets() const {
    const __m512 scaled = _mm512_mul_ps(distance, _mm512_set1_ps(kBucketsPerUnit));
    return _mm512_cvttps_epi32(_mm512_min_ps(scaled, _mm512_set1_ps(kBuckets - 1)));
  }

  Masses measured(Measure measure) const {
    const __m512i one = _mm512_set1_epi64(1);
    const Masses all = measure == Measure::kMass ? masses_of(distance) : Masses{{one, one}};
    return {{_mm512_maskz_mov_epi64(__mmask8(kept), all.halves[0]),
             _mm512_maskz_mov_epi64(__mmask8(kept >> 8), all.halves[1])}};
  }
};

// The limit of one row, raised by one filter after the other.
class Limit {
 public:
  void see(const float* logits, Range span);

  // Once all of the row was seen.
  void apply_min_p(float temperature, float log_min_p);

  // A filter's limit is the largest one that `need` is reached by. It is found in four steps: tally
  // all spans, find the bucket it lies in, collect that bucket from all spans, choose.
  void tally(const float* logits, Range span, Measure measure);
  void find_bucket(Measure measure, double need);
  void collect(const float* logits, Range span);
  void choose(Measure measure);

  float value() const { return value_; }

 private:
  using Values = std::vector<float>::iterator;

  Tokens tokens(const float* logits, __mmask16 lanes) const;
  uint64_t measured(Values begin, Values end, Measure measure) const;

  std::mutex mutex_;
  float temperature_ = 1;
  float largest_ = -kInfinity;
  float value_ = -kInfinity;
  std::vector<uint64_t> tallies_;
  uint64_t need_ = 0;
  int bucket_ = 0;
  std::vector<float> collected_;
};

Tokens Limit::tokens(const float* logits, __mmask16 lanes) const {
  const __m512 raw = _mm512_mask_loadu_ps(_mm512_set1_ps(-kInfinity), lanes, logits);
  const __m512 scaled = over(raw, temperature_);
  const __mmask16 finite = _mm512_cmp_ps_mask(scaled, _mm512_set1_ps(-kInfinity), _CMP_GT_OQ);
  const __mmask16 kept = _mm512_cmp_ps_mask(scaled, _mm512_set1_ps(value_), _CMP_GE_OQ);
  // Of NaN the minimum is the second: what has no place is far away.
  const __m512 distance =
      _mm512_min_ps(_mm512_sub_ps(_mm512_set1_ps(largest_), scaled), _mm512_set1_ps(kFar));
  return {scaled, distance, __mmask16(finite & kept)};
}

void Limit::see(const float* logits, Range span) {
  const float largest = largest_of(logits + span.begin, span.end - span.begin);
  const std::lock_guard lock(mutex_);
  largest_ = std::max(largest_, largest);
}

void Limit::apply_min_p(float temperature, float log_min_p) {
  temperature_ = temperature;
  largest_ /= temperature;
  value_ = largest_ + log_min_p;
}

void Limit::tally(const float* logits, Range span, Measure measure) {
  uint64_t tallies[kBuckets] = {};
  for (int i = span.begin; i < span.end; i += 16) {
    const Tokens seen = tokens(logits + i, first_lanes(span.end - i));
    if (seen.kept == 0) continue;
    alignas(64) int buckets[16];
    alignas(64) uint64_t amounts[16];
    const Masses masses = seen.measured(measure);
    _mm512_store_si512(buckets, seen.buckets());
    _mm512_store_si512(amounts, masses.halves[0]);
    _mm512_store_si512(amounts + 8, masses.halves[1]);
    for (int lane = 0; lane < 16; ++lane) tallies[buckets[lane]] += amounts[lane];
  }
  const std::lock_guard lock(mutex_);
  tallies_.resize(kBuckets);
  for (int bucket = 0; bucket < kBuckets; ++bucket) tallies_[bucket] += tallies[bucket];
}

void Limit::find_bucket(Measure measure, double need) {
  uint64_t total = 0;
  for (const uint64_t tally : tallies_) total += tally;
  need_ = uint64_t(std::ceil(measure == Measure::kMass ? need * double(total) : need));
  for (bucket_ = 0; bucket_ < kBuckets && tallies_[bucket_] < need_; ++bucket_) {
    need_ -= tallies_[bucket_];
  }
}

void Limit::collect(const float* logits, Range span) {
  if (bucket_ == kBuckets) return;
  std::vector<float> found;
  for (int i = span.begin; i < span.end; i += 16) {
    const Tokens seen = tokens(logits + i, first_lanes(span.end - i));
    const __mmask16 here =
        _mm512_mask_cmpeq_epi32_mask(seen.kept, seen.buckets(), _mm512_set1_epi32(bucket_));
    if (here == 0) continue;
    const size_t size = found.size();
    found.resize(size + std::popcount(uint32_t{here}));
    _mm512_mask_compressstoreu_ps(&found[size], here, seen.logits);
  }
  const std::lock_guard lock(mutex_);
  collected_.insert(collected_.end(), found.begin(), found.end());
}

uint64_t Limit::measured(Values begin, Values end, Measure measure) const {
  if (measure == Measure::kTokens) return end - begin;
  __m512i sums = _mm512_setzero_si512();
  for (; begin < end; begin += std::min<int64_t>(16, end - begin)) {
    const __mmask16 lanes = first_lanes(end - begin);
    const __m512 logits = _mm512_mask_loadu_ps(_mm512_set1_ps(-kInfinity), lanes, &*begin);
    const __m512 distance =
        _mm512_min_ps(_mm512_sub_ps(_mm512_set1_ps(largest_), logits), _mm512_set1_ps(kFar));
    const Masses masses = masses_of(distance);
    sums = _mm512_add_epi64(sums, _mm512_add_epi64(masses.halves[0], masses.halves[1]));
  }
  return _mm512_reduce_add_epi64(sums);
}

// Halves what is left around one of its values until that value is the limit. Which values it tries
// depends on their order, and so on threads, but not what it finds.
void Limit::choose(Measure measure) {
  Values begin = collected_.begin(), end = collected_.end();
  while (begin < end) {
    const float pivot = begin[(end - begin) / 2];
    const Values equal = std::partition(begin, end, [=](float x) { return x > pivot; });
    const Values below = std::partition(equal, end, [=](float x) { return x == pivot; });
    const uint64_t above = measured(begin, equal, measure);
    if (above >= need_ && equal > begin) {
      end = equal;
      continue;
    }
    const uint64_t reached = above + measured(equal, below, measure);
    if (reached >= need_) {
      value_ = std::max(value_, pivot);
      break;
    }
    need_ -= reached;
    begin = below;
  }
  tallies_.clear();
  collected_.clear();
}

void raise(const LogitRows& logits, std::vector<Limit>& limits, Measure measure, double need) {
  each_span(logits, kFewToTally, [&](const Span& span) {
    limits[span.row].tally(logits.row(span.row), {span.begin, span.end}, measure);
  });
  for (Limit& limit : limits) limit.find_bucket(measure, need);
  each_span(logits, kFewToCompare, [&](const Span& span) {
    limits[span.row].collect(logits.row(span.row), {span.begin, span.end});
  });
  each_row(logits.rows, [&](int row) { limits[row].choose(measure); });
}

}  // namespace

std::vector<float> limits_of(const LogitRows& logits, const Filters& filters) {
  const bool some_k = filters.top_k > 0 && filters.top_k < logits.vocab;
  const bool some_p = filters.top_p < 1;
  if (!some_k && !some_p && filters.log_min_p == -kInfinity) {
    return std::vector<float>(logits.rows, -kInfinity);
  }
  std::vector<Limit> limits(logits.rows);
  each_span(logits, kFewToCompare, [&](const Span& span) {
    limits[span.row].see(logits.row(span.row), {span.begin, span.end});
  });
  for (Limit& limit : limits) limit.apply_min_p(filters.temperature, filters.log_min_p);
  if (some_k) raise(logits, limits, Measure::kTokens, double(filters.top_k));
  if (some_p) raise(logits, limits, Measure::kMass, std::max(filters.top_p, 0.0));
  std::vector<float> values;
  for (const Limit& limit : limits) values.push_back(limit.value());
  return values;
}

}  // namespace slipstream
