// The weights of a linear layer in the order in which products read them.
//
// A tile holds 16 outputs and 64 bytes of inputs of each, as AMX wants its second operand: inputs in
// groups of four bytes, output after output, group after group. Tiles come in pairs of outputs, a
// pair's tiles in the order of the inputs, so that a thread reads one stream.
//
//   bf16   a tile is 16 outputs x 32 inputs, 1024 bytes
//   int8   a tile is 16 outputs x 64 inputs, 1024 bytes; a scale an output
//   int4   a tile is 16 outputs x 32 inputs, 256 bytes and then 16 float scales: 320 bytes
#pragma once

#include <cstdint>
#include <vector>

#include "arena.h"

namespace slipstream {

enum class Format { kBf16, kInt8, kInt4 };

constexpr int kTileOutputs = 16;
constexpr int kPairOutputs = 2 * kTileOutputs;

struct PackedMatrix {
  Format format;
  int outputs;
  int inputs;
  int pairs;               // of tiles, side by side
  int depth;               // tiles along the inputs
  Bytes tiles;             // [pairs][depth][2] tiles; what is beyond the matrix is zero
  std::vector<float> scales;   // [pairs * 32], int8 only
  std::vector<int> sums;       // [pairs * 32] of all inputs' weights, int8 only
  std::vector<float> bias;     // [pairs * 32], empty without one

  int padded_outputs() const { return pairs * kPairOutputs; }
  // Bytes of a row of activations, up to whole tiles.
  int row_bytes() const { return depth * 64; }
  size_t pair_bytes() const { return size_t(depth) * 2 * tile_bytes(format); }
  size_t num_bytes() const { return pairs * pair_bytes(); }

  static constexpr int inputs_per_tile(Format format) { return format == Format::kInt8 ? 64 : 32; }
  static constexpr size_t tile_bytes(Format format) { return format == Format::kInt4 ? 320 : 1024; }
};

// Each reads a row-major [outputs, inputs] matrix. `bias` may be null.
PackedMatrix pack_bf16(const uint16_t* weights, int outputs, int inputs, const float* bias);

// w = q * scale, a scale an output.
PackedMatrix pack_int8(const int8_t* q, const float* scales, int outputs, int inputs,
                       const float* bias);

// w = q * scale, q in [-8, 7], a scale for every 32 inputs of an output: scales are
// [outputs, ceil(inputs / 32)].
PackedMatrix pack_int4(const int8_t* q, const float* scales, int outputs, int inputs,
                       const float* bias);

}  // namespace slipstream
