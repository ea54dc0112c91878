#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "panels.h"
#include "rows.h"
#include "team.h"

namespace slipstream {
namespace {

// What a step writes on its way. One step at a time has it; it grows to the largest one.
struct Scratch {
  ActivationRows normed, attended, post_normed, gated;
  std::vector<float> qkv, attention, inner;
  std::vector<uint16_t> queries;

  void fit(const DecoderLayer& layer, int rows) {
    normed.fit(rows, layer.qkv);
    attended.fit(rows, layer.out);
    post_normed.fit(rows, layer.gate_up);
    gated.fit(rows, layer.down);
    grow(qkv, size_t(rows) * layer.qkv.outputs);
    grow(attention, size_t(rows) * layer.out.inputs);
    grow(inner, size_t(rows) * layer.inner());
    grow(queries, size_t(rows) * layer.out.inputs);
  }

 private:
  template <class Element>
  static void grow(std::vector<Element>& elements, size_t size) {
    if (elements.size() < size) elements.resize(size);
  }
};

// Where a row's key and value go, and its angles come from.
struct RowPlace {
  int64_t page;
  int64_t within;
  int64_t position;  // in the text
};

// What all layers of a step have in common.
struct StepPlan {
  StepPlan(const DecoderRows& rows, int query_heads, int key_heads) : rows(rows) {
    for (const SessionRows& session : rows.sessions) {
      const Visibility& v = session.visibility;
      for (int row = 0; row < v.rows; ++row) {
        const int64_t slot = v.prefix_len + row;
        places.push_back({v.pages[slot / kPageSlots], slot % kPageSlots,
                          v.positions[row] + session.first_position});
      }
      units.push_back(attention_units(v.rows, query_heads, key_heads) + last_unit());
    }
  }

  // Units of attention of all sessions.
  int last_unit() const { return units.empty() ? 0 : units.back(); }

  const DecoderRows& rows;
  std::vector<RowPlace> places;
  std::vector<int> units;  // where those of each session end
};

// One layer, as one thread of the team runs it.
class LayerRun {
 public:
  LayerRun(const DecoderLayer& layer, const StepPlan& plan, const KeysAndValues& cache,
           Scratch& scratch, int rank)
      : l_(layer), plan_(plan), cache_(cache), s_(scratch), rank_(rank) {}

  void attention(const float* x, float* h) {
    each_row([&](int row) { write_input(row, x, h); });
    multiply(l_.qkv, s_.normed, store_panel, {s_.qkv.data(), l_.qkv.outputs});
    place_heads();
    attend_all();
    const int width = l_.out.inputs;
    each_row([&](int row) { s_.attended.write(row, &s_.attention[int64_t(row) * width], width); });
    multiply(l_.out, s_.attended, add_panel, {h, l_.hidden()});
  }

  void mlp(float* h) {
    const int hidden = l_.hidden(), inner = l_.inner();
    each_row([&](int row) {
      const float* const x = h + int64_t(row) * hidden;
      s_.post_normed.write_norm(row, x, l_.post_norm.data(), hidden, l_.eps);
    });
    multiply(l_.gate_up, s_.post_normed, gate_panel, {s_.inner.data(), inner});
    each_row([&](int row) { s_.gated.write(row, &s_.inner[int64_t(row) * inner], inner); });
    multiply(l_.down, s_.gated, add_panel, {h, hidden});
  }

 private:
  int num_rows() const { return plan_.rows.count; }

  template <class Work>
  void each(int count, const Work& work) {
    const Range mine = team_.share(count, rank_);
    for (int i = mine.begin; i < mine.end; ++i) work(i);
    team_.barrier();
  }

  template <class Work>
  void each_row(const Work& work) {
    each(num_rows(), work);
  }

  void multiply(const PackedMatrix& w, const ActivationRows& x, PanelSink sink, const Results& y) {
    product(w, x, num_rows(), rank_, sink, y);
    team_.barrier();
  }

  void write_input(int row, const float* x, const float* h) {
    const int width = l_.qkv.inputs;
    if (l_.input_norm.empty()) {
      s_.normed.write(row, x + int64_t(row) * width, width);
    } else {
      s_.normed.write_norm(row, h + int64_t(row) * width, l_.input_norm.data(), width, l_.eps);
    }
  }

  void place_heads() {
    // Head after head: two rows' values lie side by side, and two threads must not share their lines.
    each(l_.query_heads + 2 * cache_.heads, [&](int head) {
      for (int row = 0; row < num_rows(); ++row) place_head(row, head);
    });
  }

  // Norms and rotates one head of one row, and puts it where attention will look for it.
  void place_head(int row, int head) {
    const int dim = l_.head_dim, keys_end = l_.query_heads + cache_.heads;
    float* const x = &s_.qkv[int64_t(row) * l_.qkv.outputs + head * dim];
    if (head >= keys_end) return write_value(row, head - keys_end, x);
    const bool is_query = head < l_.query_heads;
    const std::vector<float>& norm = is_query ? l_.query_norm : l_.key_norm;
    if (!norm.empty()) rms_norm(x, norm.data(), dim, l_.eps, x);
    const int64_t angle = plan_.places[row].position * dim;
    rotate(x, plan_.rows.cos + angle, plan_.rows.sin + angle, dim);
    to_bf16(x, dim, is_query ? query(row, head) : key(row, head - l_.query_heads));
  }

  uint16_t* query(int row, int head) {
    return &s_.queries[(int64_t(row) * l_.query_heads + head) * l_.head_dim];
  }

  uint16_t* key(int row, int head) {
    return head_of_page(cache_.keys, row, head) + plan_.places[row].within * l_.head_dim;
  }

  void write_value(int row, int head, const float* x) {
    const int64_t pair = plan_.places[row].within / 2, side = plan_.places[row].within % 2;
    uint16_t* const values = head_of_page(cache_.values, row, head);
    to_side_of_pairs(x, l_.head_dim, int(side), values + pair * 2 * l_.head_dim);
  }

  // Whoever writes a page's first slot empties the page: what another session left there is
  // multiplied by an exact 0, and would be felt if it were not finite.
  uint16_t* head_of_page(uint16_t* part, int row, int head) {
    const RowPlace& place = plan_.places[row];
    uint16_t* const block = part + cache_.block(place.page, head);
    if (place.within == 0) std::memset(block, 0, sizeof(uint16_t) * kPageSlots * l_.head_dim);
    return block;
  }

  void attend_all() {
    each(plan_.last_unit(), [&](int unit) {
      const auto end = std::upper_bound(plan_.units.begin(), plan_.units.end(), unit);
      const int first_unit = end == plan_.units.begin() ? 0 : end[-1];
      attend(problem_of(plan_.rows.sessions[end - plan_.units.begin()]), unit - first_unit);
    });
  }

  AttentionProblem problem_of(const SessionRows& session) const {
    const float scale = 1.0f / std::sqrt(float(l_.head_dim));
    const int64_t first = int64_t(session.first_row) * l_.query_heads * l_.head_dim;
    return {s_.queries.data() + first, l_.query_heads,     scale,
            cache_,                    session.visibility, s_.attention.data() + first};
  }

  const DecoderLayer& l_;
  const StepPlan& plan_;
  const KeysAndValues& cache_;
  Scratch& s_;
  const int rank_;
  Team& team_ = Team::instance();
};

void read_taps(const std::vector<Tap>& taps, int layer, const float* h, int hidden, Range rows) {
  for (const Tap& tap : taps) {
    if (tap.layer != layer) continue;
    for (int row = rows.begin; row < rows.end; ++row) {
      to_bf16(h + int64_t(row) * hidden, hidden, tap.target + row * tap.stride);
    }
  }
}

}  // namespace

void decode(const std::vector<DecoderLayer>& layers, const DecoderRows& rows,
            const Caches& caches, const std::vector<Tap>& taps, const float* x, float* h) {
  Team& team = Team::instance();
  static std::mutex mutex;
  static Scratch scratch;
  const std::lock_guard lock(mutex);
  const int hidden = layers[0].hidden(), depth = int(layers.size());
  scratch.fit(layers[0], rows.count);
  const StepPlan plan(rows, layers[0].query_heads, layers[0].key_heads());
  team.run([&](int rank) {
    const Range mine = team.share(rows.count, rank);
    for (int layer = 0; layer < depth; ++layer) {
      read_taps(taps, layer, h, hidden, mine);
      LayerRun run(layers[layer], plan, caches[layer], scratch, rank);
      run.attention(x, h);
      run.mlp(h);
    }
    read_taps(taps, depth, h, hidden, mine);
  });
}

void attend_all(const AttentionProblem& problem) {
  Team& team = Team::instance();
  const int units =
      attention_units(problem.visibility.rows, problem.query_heads, problem.cache.heads);
  team.run([&](int rank) {
    const Range mine = team.share(units, rank);
    for (int unit = mine.begin; unit < mine.end; ++unit) attend(problem, unit);
  });
}

void project(const PackedMatrix& w, const float* norm, float eps, const float* h, int rows,
             float* y) {
  Team& team = Team::instance();
  static std::mutex mutex;
  static ActivationRows normed;
  const std::lock_guard lock(mutex);
  normed.fit(rows, w);
  team.run([&](int rank) {
    const Range mine = team.share(rows, rank);
    for (int row = mine.begin; row < mine.end; ++row) {
      const float* const x = h + int64_t(row) * w.inputs;
      if (norm == nullptr) {
        normed.write(row, x, w.inputs);
      } else {
        normed.write_norm(row, x, norm, w.inputs, eps);
      }
    }
    team.barrier();
    product(w, normed, rows, rank, store_panel, {y, w.outputs});
  });
}

}  // namespace slipstream
