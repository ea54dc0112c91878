// Legend: a lane is a query: a row and one of the query heads that share a key-value head.
#include "target.h"

#include "attention.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "key_block.h"
#include "key_pages.h"
#include "tiles.h"
#include "vector.h"

namespace slipstream {

namespace {

// Below every score, and finite: 2^(it - any score) is an exact 0.
constexpr float kLowest = -1e30f;

// What a unit knows of its lanes, and their softmax so far.
struct alignas(64) Lanes {
  PairedQueries queries;
  Outputs outputs;
  __m512 maxima;   // of scores in powers of two
  __m512 sums;
  int count;
  int rows[kLanes];
  int64_t positions[kLanes];
  int64_t nearest;             // the first of them
  int64_t queries_at[kLanes];  // where each begins, and its output
};

struct ScoredBlock {
  KeyBlock block;
  Scores scores;
  CopiedBlock copy;
};

int queries_per_key(const AttentionProblem& p) { return p.query_heads / p.cache.heads; }

// Queries as pairs of elements, a lane each.
void read_queries(const AttentionProblem& p, Lanes& lanes) {
  const int head_dim = p.cache.head_dim;
  for (int d = 0; d < padded_head_dim(head_dim); d += 32) {
    const int left = head_dim - d < 32 ? head_dim - d : 32;
    const __mmask32 there = left <= 0 ? 0 : __mmask32((uint64_t{1} << left) - 1);
    __m512i pairs[kLanes] = {};
    for (int lane = 0; lane < lanes.count; ++lane) {
      const uint16_t* const query = p.queries + lanes.queries_at[lane];
      pairs[lane] = _mm512_maskz_loadu_epi16(there, query + d);
    }
    transpose(pairs);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(lanes.queries[d / 2 + i], pairs[i]);
  }
}

void begin(const AttentionProblem& p, int head, int first, Lanes& lanes) {
  const int group = queries_per_key(p), queries = p.visibility.rows * group;
  const int head_dim = p.cache.head_dim;
  lanes.count = std::min(queries - first, kLanes);
  lanes.maxima = _mm512_set1_ps(kLowest);
  lanes.sums = _mm512_setzero_ps();
  lanes.nearest = INT64_MAX;
  std::memset(lanes.outputs, 0, sizeof(float) * kLanes * padded_head_dim(head_dim));
  int row = first / group, member = first % group;
  for (int lane = 0; lane < kLanes; ++lane) {
    const bool there = lane < lanes.count;
    lanes.rows[lane] = row;
    lanes.positions[lane] = there ? p.visibility.positions[row] : -1;
    lanes.queries_at[lane] = (int64_t(row) * p.query_heads + head * group + member) * head_dim;
    if (there) lanes.nearest = std::min(lanes.nearest, lanes.positions[lane]);
    if (++member == group) member = 0, ++row;
  }
  read_queries(p, lanes);
}

// Which lanes of `among` see a position.
__mmask16 seers(const Lanes& lanes, int64_t position, __mmask16 among) {
  const __m512i wanted = _mm512_set1_epi64(position);
  const __mmask8 low = _mm512_cmpge_epi64_mask(_mm512_loadu_si512(lanes.positions), wanted);
  const __mmask8 high = _mm512_cmpge_epi64_mask(_mm512_loadu_si512(lanes.positions + 8), wanted);
  return __mmask16((low | high << 8) & among);
}

// Scales a block's scores to powers of two and says which lanes see each key. Returns the maxima.
__m512 scale_scores(ScoredBlock& scored, int64_t position, __mmask16 among, float scale,
                    const Lanes& lanes, __mmask16* seen) {
  const int length = scored.block.length;
  // Most blocks lie before all rows.
  const bool all = lanes.nearest >= position + length - 1;
  const __m512 factor = _mm512_set1_ps(scale * kLog2E);
  __m512 maxima = lanes.maxima;
  for (int key = 0; key < length; ++key) {
    float* const score = scored.scores[key];
    seen[key] = all ? among : seers(lanes, position + key, among);
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(score), factor);
    _mm512_storeu_ps(score, scaled);
    maxima = _mm512_mask_max_ps(maxima, seen[key], maxima, scaled);
  }
  return maxima;
}

// Turns scores into weights, 0 for keys that are not seen. Returns their sums.
__m512 weigh(const ScoredBlock& scored, const __mmask16* seen, __m512 maxima, Weights& weights) {
  __m512 sums = _mm512_setzero_ps();
  for (int start = 0; start < scored.block.length; start += kHalfKeys) {
    const int end = std::min(scored.block.length, start + kHalfKeys);
    __m512i pairs[kLanes] = {};
    for (int key = start; key < end; key += 2) {
      __m512 shares[2];
      for (int side = 0; side < 2; ++side) {
        const __m512 below = _mm512_sub_ps(_mm512_loadu_ps(scored.scores[key + side]), maxima);
        shares[side] = _mm512_maskz_mov_ps(seen[key + side], exp2(below));
        sums = _mm512_add_ps(sums, shares[side]);
      }
      pairs[(key - start) / 2] = pairs_of_bf16(shares[0], shares[1]);
    }
    transpose(pairs);
    auto* const half = weights[start / kHalfKeys];
    for (int lane = 0; lane < kLanes; ++lane) _mm512_storeu_si512(half[lane], pairs[lane]);
  }
  return sums;
}

// Multiplies the outputs of the lanes in `moved` by what they keep.
void rescale(int head_dim, __m512 kept, unsigned moved, Outputs& outputs) {
  alignas(64) float factors[kLanes];
  _mm512_store_ps(factors, kept);
  for (; moved != 0; moved &= moved - 1) {
    const int lane = std::countr_zero(moved);
    const __m512 factor = _mm512_set1_ps(factors[lane]);
    for (int d = 0; d < head_dim; d += 16) {
      float* const sums = outputs[d / 16][lane];
      _mm512_storeu_ps(sums, _mm512_mul_ps(_mm512_loadu_ps(sums), factor));
    }
  }
}

// Adds a block of keys, the first of them at `position`, to the softmax of the lanes of `among`.
void add_block(ScoredBlock& scored, int64_t position, __mmask16 among, float scale, Lanes& lanes) {
  __mmask16 seen[kBlockKeys];
  alignas(64) Weights weights;
  const __m512 maxima = scale_scores(scored, position, among, scale, lanes, seen);
  const __m512 sums = weigh(scored, seen, maxima, weights);
  // Lanes without a new maximum keep what they have: 2^0 is an exact 1.
  const __mmask16 moved = _mm512_mask_cmp_ps_mask(among, maxima, lanes.maxima, _CMP_NEQ_OQ);
  const __m512 kept = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), moved,
                                         exp2(_mm512_sub_ps(lanes.maxima, maxima)));
  lanes.sums = _mm512_fmadd_ps(lanes.sums, kept, sums);
  lanes.maxima = maxima;
  rescale(scored.block.head_dim, kept, moved, lanes.outputs);
  add_values(scored.block, weights, among, lanes.outputs);
}

// The rows' own paths after the trunk: each row has keys of its own.
void add_tails(const AttentionProblem& p, int head, ScoredBlock& scored, Lanes& lanes) {
  const Visibility& v = p.visibility;
  for (int row = lanes.rows[0]; row <= lanes.rows[lanes.count - 1]; ++row) {
    __mmask16 own = 0;
    for (int lane = 0; lane < lanes.count; ++lane) own |= (lanes.rows[lane] == row) << lane;
    const int64_t length = v.positions[row] - v.trunk_len + 1;
    for (int64_t start = 0; start < length; start += kBlockKeys) {
      const int count = int(length - start < kBlockKeys ? length - start : kBlockKeys);
      const int64_t* const slots = v.tail_slots + row * v.tail_width + start;
      scored.block = copy_block(p, head, slots, count, scored.copy);
      score(scored.block, lanes.queries, scored.scores);
      add_block(scored, v.trunk_len + start, own, p.scale, lanes);
    }
  }
}

// The blocks that all lanes have in common. One is scored ahead: the products of the next block run
// while the softmax of this one is computed.
void add_common(const AttentionProblem& p, int head, int64_t end, bool is_first,
                ScoredBlock (&scored)[2], Lanes& lanes) {
  const auto prepare = [&](int64_t position, ScoredBlock& next) {
    if (is_first) call_for(p, head, position + kBlockKeys, end);
    next.block = block_at(p, head, position, end, next.copy);
    score(next.block, lanes.queries, next.scores);
  };
  if (end > 0) prepare(0, scored[0]);
  for (int64_t position = 0; position < end; position += kBlockKeys) {
    const int turn = position / kBlockKeys % 2;
    const int64_t next = position + kBlockKeys;
    if (next < end) prepare(next, scored[1 - turn]);
    add_block(scored[turn], position, first_lanes(lanes.count), p.scale, lanes);
  }
}

void finish(const AttentionProblem& p, const Lanes& lanes) {
  const int head_dim = p.cache.head_dim;
  alignas(64) float shares[kLanes];
  _mm512_store_ps(shares, _mm512_div_ps(_mm512_set1_ps(1.0f), lanes.sums));
  for (int lane = 0; lane < lanes.count; ++lane) {
    const __m512 share = _mm512_set1_ps(shares[lane]);
    for (int d = 0; d < head_dim; d += 16) {
      const __m512 sums = _mm512_loadu_ps(lanes.outputs[d / 16][lane]);
      // A zero is positive, whatever unseen keys' zeros were added to it.
      const __m512 out = _mm512_fmadd_ps(sums, share, _mm512_setzero_ps());
      _mm512_mask_storeu_ps(p.out + lanes.queries_at[lane] + d, first_lanes(head_dim - d), out);
    }
  }
}

}  // namespace

int attention_units(int rows, int query_heads, int key_heads) {
  return key_heads * ceil_div(rows * (query_heads / key_heads), kLanes);
}

void attend(const AttentionProblem& p, int unit) {
  const TileScope scope(kAllTileRows);
  Lanes lanes;
  ScoredBlock scored[2];
  const int units_per_head = ceil_div(p.visibility.rows * queries_per_key(p), kLanes);
  const int head = unit / units_per_head, chunk = unit % units_per_head;
  begin(p, head, chunk * kLanes, lanes);
  const Visibility& v = p.visibility;
  const bool chain = v.tail_slots == nullptr;
  // Rows of a chain follow each other: the last lane sees farthest.
  const int64_t end = chain ? lanes.positions[lanes.count - 1] + 1 : v.trunk_len;
  add_common(p, head, end, chunk == 0, scored, lanes);
  if (!chain) add_tails(p, head, scored[0], lanes);
  finish(p, lanes);
}

}  // namespace slipstream
