// Rows of logits, and how threads share them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "team.h"

namespace slipstream {

// What a sum or a share begins and ends with. Fixed, so that no result depends on the threads.
constexpr int kVocabularyBlock = 1024;

struct LogitRows {
  const float* data;  // [rows][vocab], rows `stride` elements apart
  int64_t stride;
  int rows;
  int vocab;

  const float* row(int index) const { return data + index * stride; }
  int blocks() const { return (vocab + kVocabularyBlock - 1) / kVocabularyBlock; }
};

// Consecutive blocks of a row: tokens from `begin`, a multiple of 1024, to `end`.
struct Span {
  int row;
  int begin;
  int end;
};

// Calls work(span) for all of a thread's share, which begins and ends at blocks of any row.
template <class Work>
void each_span_of(const LogitRows& logits, Range share, const Work& work) {
  const int blocks = logits.blocks();
  while (share.begin < share.end) {
    const int row = share.begin / blocks, first = share.begin % blocks;
    const int last = std::min(blocks, first + share.end - share.begin);
    work(Span{row, first * kVocabularyBlock, std::min(logits.vocab, last * kVocabularyBlock)});
    share.begin += last - first;
  }
}

// How many blocks one thread is done with before another, that may be asleep, would help.
enum Few { kFewToCompare = 256, kFewToSum = 64, kFewToTally = 16, kFewToDraw = 16 };

// Calls work(span) until all tokens of all rows were covered once, on all threads unless there are
// but few blocks. Two spans of a row may be worked on at once.
template <class Work>
void each_span(const LogitRows& logits, Few few, const Work& work) {
  Team& team = Team::instance();
  const int units = logits.rows * logits.blocks();
  if (units <= few || team.size() == 1) return each_span_of(logits, {0, units}, work);
  team.run([&](int rank) { each_span_of(logits, team.share(units, rank), work); });
}

// Calls work(row) for all rows.
template <class Work>
void each_row(int rows, const Work& work) {
  Team& team = Team::instance();
  const auto part = [&](Range share) {
    for (int row = share.begin; row < share.end; ++row) work(row);
  };
  if (rows == 1 || team.size() == 1) return part({0, rows});
  team.run([&](int rank) { part(team.share(rows, rank)); });
}

}  // namespace slipstream
