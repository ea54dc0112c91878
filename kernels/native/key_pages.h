// Blocks of 64 keys out of a session's pages: as they lie there, or copied.
#pragma once

#include <cstdint>

#include "attention.h"
#include "key_block.h"

namespace slipstream {

// A block that is not whole in a page is copied: one of a tree's row, one with a narrow head.
struct alignas(64) CopiedBlock {
  uint16_t keys[kBlockKeys * kMaxHeadDim];
  uint16_t values[kBlockKeys * kMaxHeadDim];
};

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// `count` rounded up to whole granules.
constexpr int whole(int count, int granule) { return ceil_div(count, granule) * granule; }

// What products read of a head.
constexpr int padded_head_dim(int head_dim) { return whole(head_dim, 32); }

// Returns the block at a slot, of keys before `end`, as it lies there if it can be read there.
KeyBlock block_at(const AttentionProblem& p, int head, int64_t slot, int64_t end,
                  CopiedBlock& copy);

// Copies the keys in `slots`, at most 64 of them, and zeros behind them as far as products read.
KeyBlock copy_block(const AttentionProblem& p, int head, const int64_t* slots, int count,
                    CopiedBlock& copy);

// Calls for a block that will be read soon: the weights read since the last step have pushed keys
// and values out of the caches.
void call_for(const AttentionProblem& p, int head, int64_t slot, int64_t end);

}  // namespace slipstream
