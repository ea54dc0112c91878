// A stack of decoder layers, all of it in one parallel region: nothing but barriers between ops.
//
//   x = norm(h)                                  or given from outside
//   h = h + O attention(rotate(QKV x))
//   h = h + down(silu(gate x) * up x), x = norm(h)
//
// The residual stream h is kept in float32; what products read is rounded to their format.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"
#include "packed_matrix.h"

namespace slipstream {

struct DecoderLayer {
  int query_heads;
  int head_dim;
  float eps;
  PackedMatrix qkv;      // queries, then keys, then values
  PackedMatrix out;
  PackedMatrix gate_up;  // 16 outputs of the gate beside the same 16 of up, in every pair of tiles
  PackedMatrix down;
  std::vector<float> input_norm;  // empty if x is given from outside
  std::vector<float> post_norm;
  std::vector<float> query_norm;  // of a head; empty without one
  std::vector<float> key_norm;

  int hidden() const { return out.outputs; }
  int inner() const { return gate_up.outputs / 2; }
  int key_heads() const { return (qkv.outputs / head_dim - query_heads) / 2; }

  bool has_shape_of(const DecoderLayer& other) const {
    const auto same = [](const PackedMatrix& a, const PackedMatrix& b) {
      return a.format == b.format && a.outputs == b.outputs && a.inputs == b.inputs;
    };
    return query_heads == other.query_heads && head_dim == other.head_dim &&
           same(qkv, other.qkv) && same(out, other.out) && same(gate_up, other.gate_up) &&
           same(down, other.down) && input_norm.empty() == other.input_norm.empty();
  }
};

// One session's rows, laid out in its pages.
struct SessionRows {
  int first_row;
  Visibility visibility;
  int64_t first_position;  // of the text, where the first slot lies
};

// The rows of all sessions, one session after the other.
struct DecoderRows {
  int count;
  std::vector<SessionRows> sessions;
  const uint16_t* cos;  // [positions][D] in bf16
  const uint16_t* sin;
};

// Where a layer's keys and values lie.
using Caches = std::vector<KeysAndValues>;

// The input of layer `layer` goes, in bf16, to `target`: [rows] that begin `stride` elements apart.
struct Tap {
  int layer;
  uint16_t* target;
  int64_t stride;
};

// Runs the layers on h [rows][hidden], in place. `x` are the first layer's rows if it has no norm.
void decode(const std::vector<DecoderLayer>& layers, const DecoderRows& rows,
            const Caches& caches, const std::vector<Tap>& taps, const float* x, float* h);

// All units of an attention, shared among the threads.
void attend_all(const AttentionProblem& problem);

// y[rows][outputs] = W norm(h) + bias; without a norm for null.
void project(const PackedMatrix& w, const float* norm, float eps, const float* h, int rows,
             float* y);

}  // namespace slipstream
