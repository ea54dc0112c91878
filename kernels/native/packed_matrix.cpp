#include "packed_matrix.h"

#include <algorithm>
#include <cstring>

namespace slipstream {
namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

PackedMatrix empty(Format format, int outputs, int inputs, const float* bias) {
  PackedMatrix m{};
  m.format = format;
  m.outputs = outputs;
  m.inputs = inputs;
  m.pairs = ceil_div(outputs, kPairOutputs);
  m.depth = ceil_div(inputs, PackedMatrix::inputs_per_tile(format));
  m.tiles = allocate_huge(m.num_bytes());
  if (bias != nullptr) {
    m.bias.assign(bias, bias + outputs);
    m.bias.resize(m.padded_outputs());
  }
  return m;
}

// Returns the tile that holds an output and an input.
std::byte* tile_of(const PackedMatrix& m, int output, int input) {
  const int pair = output / kPairOutputs, side = output % kPairOutputs / kTileOutputs;
  const int deep = input / PackedMatrix::inputs_per_tile(m.format);
  const size_t index = (size_t(pair) * m.depth + deep) * 2 + side;
  return m.tiles.get() + index * PackedMatrix::tile_bytes(m.format);
}

// Returns which of a tile's elements, `grouped` inputs to a group, an output and an input are.
int element_of(int output, int input, int grouped) {
  const int within = input % (16 * grouped);
  return (within / grouped * kTileOutputs + output % kTileOutputs) * grouped + within % grouped;
}

template <class Element>
void scatter(PackedMatrix& m, const Element* weights) {
  constexpr int kGrouped = 4 / sizeof(Element);
  for (int output = 0; output < m.outputs; ++output) {
    for (int input = 0; input < m.inputs; ++input) {
      auto* const tile = reinterpret_cast<Element*>(tile_of(m, output, input));
      tile[element_of(output, input, kGrouped)] = weights[int64_t(output) * m.inputs + input];
    }
  }
}

}  // namespace

PackedMatrix pack_bf16(const uint16_t* weights, int outputs, int inputs, const float* bias) {
  PackedMatrix m = empty(Format::kBf16, outputs, inputs, bias);
  scatter(m, weights);
  return m;
}

PackedMatrix pack_int8(const int8_t* q, const float* scales, int outputs, int inputs,
                       const float* bias) {
  PackedMatrix m = empty(Format::kInt8, outputs, inputs, bias);
  scatter(m, q);
  m.scales.assign(scales, scales + outputs);
  m.scales.resize(m.padded_outputs());
  m.sums.resize(m.padded_outputs());
  for (int output = 0; output < outputs; ++output) {
    const int8_t* const row = q + int64_t(output) * inputs;
    for (int input = 0; input < inputs; ++input) m.sums[output] += row[input];
  }
  return m;
}

PackedMatrix pack_int4(const int8_t* q, const float* scales, int outputs, int inputs,
                       const float* bias) {
  PackedMatrix m = empty(Format::kInt4, outputs, inputs, bias);
  const int groups = ceil_div(inputs, 32);
  for (int output = 0; output < outputs; ++output) {
    for (int input = 0; input < inputs; ++input) {
      auto* const tile = reinterpret_cast<uint8_t*>(tile_of(m, output, input));
      // Of 64 bytes, the low halves are one group of 64 weights and the high halves the next.
      const int element = element_of(output, input, 2);
      const int half = element / 64 % 2, byte = element / 128 * 64 + element % 64;
      tile[byte] |= (q[int64_t(output) * inputs + input] & 15) << (4 * half);
    }
    for (int group = 0; group < groups; ++group) {
      std::byte* const tile = tile_of(m, output, group * 32);
      std::memcpy(tile + 256 + output % kTileOutputs * sizeof(float),
                  &scales[int64_t(output) * groups + group], sizeof(float));
    }
  }
  return m;
}

}  // namespace slipstream
