// Attention of rows to the keys and values of their session, in one layer.
//
// The reduction follows absolute positions, in blocks of 64 from position 0, as in the reference
// (kernels/attention.py), with a running maximum; keys that a row may not see add an exact zero. So
// a row's result does not depend on which rows are beside it, or whether its predecessors lie in
// the cache, in the same chunk, or on a branch of a tree.
#pragma once

#include <cstdint>

namespace slipstream {

constexpr int kPageSlots = 64;

// One layer's keys [pages][C][64][D] and values [pages][C][32][D][2], in bf16: within a page of 64
// slots values lie in pairs of slots, element by element side by side, as products over keys read
// them. Pages begin `page_stride` elements apart: between them lie the other layers.
struct KeysAndValues {
  uint16_t* keys;
  uint16_t* values;
  int64_t page_stride;
  int heads;
  int head_dim;

  // Where a head's part of a page begins.
  int64_t block(int64_t page, int head) const {
    return page * page_stride + int64_t(head) * kPageSlots * head_dim;
  }
};

// Which keys each row of a session may see; see RowLayout in kernels/attention.py.
struct Visibility {
  int rows;
  const int64_t* pages;  // where the session's slots lie, 64 of them in each
  const int64_t* positions;
  int64_t prefix_len;
  int64_t trunk_len;
  const int64_t* tail_slots;  // [rows][tail_width], null for a chain: slots are positions
  int64_t tail_width;
};

struct AttentionProblem {
  const uint16_t* queries;  // [rows][query_heads][D] in bf16
  int query_heads;
  float scale;
  KeysAndValues cache;
  Visibility visibility;
  float* out;  // [rows][query_heads][D]
};

// Units of work of a session: 16 queries of one key-value head each.
int attention_units(int rows, int query_heads, int key_heads);

// Does one unit. Units are independent of each other.
void attend(const AttentionProblem& problem, int unit);

}  // namespace slipstream
