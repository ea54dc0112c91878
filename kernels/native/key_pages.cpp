#include "target.h"

#include "key_pages.h"

#include <algorithm>
#include <cstring>

#include "vector.h"

namespace slipstream {
namespace {

// How many of a block's keys are read if so many are seen from its first on.
int length_of(int64_t seen) { return whole(int(std::min<int64_t>(seen, kBlockKeys)), 16); }

// The page that begins at a slot, as it lies there, up to the last slot that is seen.
KeyBlock page_at(const AttentionProblem& p, int head, int64_t slot, int64_t end) {
  const KeysAndValues& cache = p.cache;
  const int64_t block = cache.block(p.visibility.pages[slot / kPageSlots], head);
  return {cache.keys + block, cache.values + block, cache.head_dim, length_of(end - slot)};
}

// Copies a slot's key and value to a place in a block.
void copy_slot(const AttentionProblem& p, int head, int64_t slot, int place, int head_dim,
               CopiedBlock& copy) {
  const int dim = p.cache.head_dim, within = int(slot % kPageSlots);
  const KeyBlock page = page_at(p, head, slot - within, slot + 1);
  std::memcpy(copy.keys + place * head_dim, page.keys + within * dim, sizeof(uint16_t) * dim);
  const uint16_t* const source = page.values + within / 2 * 2 * dim;
  uint16_t* const target = copy.values + place / 2 * 2 * head_dim;
  for (int d = 0; d < dim; d += 16) {
    const __m512i pairs = _mm512_maskz_loadu_epi32(first_lanes(dim - d), source + 2 * d);
    const __m512i upper = within % 2 == 0 ? _mm512_slli_epi32(pairs, 16) : pairs;
    store_side(target + 2 * d, upper, place % 2, dim - d);
  }
}

}  // namespace

KeyBlock copy_block(const AttentionProblem& p, int head, const int64_t* slots, int count,
                    CopiedBlock& copy) {
  const int head_dim = padded_head_dim(p.cache.head_dim);
  const size_t bytes = sizeof(uint16_t) * whole(count, kHalfKeys) * head_dim;
  std::memset(copy.keys, 0, bytes);
  std::memset(copy.values, 0, bytes);
  for (int key = 0; key < count; ++key) copy_slot(p, head, slots[key], key, head_dim, copy);
  return {copy.keys, copy.values, head_dim, length_of(count)};
}

KeyBlock block_at(const AttentionProblem& p, int head, int64_t slot, int64_t end,
                  CopiedBlock& copy) {
  if (p.cache.head_dim % 32 == 0) return page_at(p, head, slot, end);
  const int count = int(std::min<int64_t>(end - slot, kBlockKeys));
  int64_t slots[kBlockKeys];
  for (int key = 0; key < count; ++key) slots[key] = slot + key;
  return copy_block(p, head, slots, count, copy);
}

void call_for(const AttentionProblem& p, int head, int64_t slot, int64_t end) {
  if (slot >= end) return;
  const KeyBlock block = page_at(p, head, slot, end);
  const int row_bytes = block.head_dim * int(sizeof(uint16_t));
  const auto* const keys = reinterpret_cast<const char*>(block.keys);
  const auto* const values = reinterpret_cast<const char*>(block.values);
  for (int line = 0; line < block.length * row_bytes; line += 64) {
    _mm_prefetch(keys + line, _MM_HINT_T0);
  }
  for (int line = 0; line < whole(block.length, kHalfKeys) * row_bytes; line += 64) {
    _mm_prefetch(values + line, _MM_HINT_T0);
  }
}

}  // namespace slipstream
