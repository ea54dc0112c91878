// For benchmarks/kernels.py alone: what memory can do, and what products do with nothing between.
#include "bench_ops.h"

#include <algorithm>
#include <vector>

#include "arena.h"
#include "panels.h"
#include "rows.h"
#include "team.h"

namespace slipstream {
namespace {

// Reads every cache line of a thread's share.
int64_t sum_lines(const std::byte* data, size_t begin, size_t end) {
  int64_t sums[8] = {};
  for (size_t line = begin; line + 512 <= end; line += 512) {
    for (int i = 0; i < 8; ++i) sums[i] += *reinterpret_cast<const int64_t*>(data + line + i * 64);
  }
  int64_t total = 0;
  for (const int64_t sum : sums) total += sum;
  return total;
}

}  // namespace

int64_t read_memory(int64_t num_bytes) {
  static Bytes buffer;
  static int64_t size = 0;
  if (size != num_bytes) {
    buffer = allocate_huge(num_bytes);
    // Pages that were never written are all the same one.
    std::fill_n(buffer.get(), num_bytes, std::byte{1});
    size = num_bytes;
  }
  Team& team = Team::instance();
  std::vector<int64_t> sums(team.size());
  team.run([&](int rank) {
    const Range mine = team.share(int(num_bytes / 4096), rank);
    sums[rank] = sum_lines(buffer.get(), size_t(mine.begin) * 4096, size_t(mine.end) * 4096);
  });
  int64_t total = 0;
  for (const int64_t sum : sums) total += sum;
  return total;
}

int64_t multiply_all(const std::vector<const PackedMatrix*>& matrices, int rows) {
  Team& team = Team::instance();
  std::vector<ActivationRows> x(matrices.size());
  size_t widest = 0;
  int64_t num_bytes = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    x[i].fit(rows, *matrices[i]);
    widest = std::max<size_t>(widest, matrices[i]->padded_outputs());
    num_bytes += matrices[i]->num_bytes();
  }
  // Kept: fresh memory would be measured too.
  static std::vector<float> y;
  if (y.size() < rows * widest) y.resize(rows * widest);
  team.run([&](int rank) {
    for (size_t i = 0; i < matrices.size(); ++i) {
      product(*matrices[i], x[i], rows, rank, store_panel,
              {y.data(), matrices[i]->padded_outputs()});
    }
  });
  return num_bytes;
}

}  // namespace slipstream
