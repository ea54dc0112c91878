// Products on AVX-512, for CPUs without AMX: the same packed tiles, a vector of 16 outputs at a
// time. 16-bit weights are multiplied in float32; 8-bit ones by VNNI.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma,avx2")

#include <immintrin.h>

#include <cstring>

#include "products.h"
#include "vector.h"

namespace slipstream::avx512 {
namespace {

constexpr int kRows = 8;

int load_int(const std::byte* source) {
  int value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

// Two consecutive inputs of 16 outputs, as floats.
struct Pair {
  __m512 even;
  __m512 odd;
};

Pair split(__m512i bf16_pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bf16_pairs, 16)),
          _mm512_castsi512_ps(
              _mm512_and_si512(bf16_pairs, _mm512_set1_epi32(int(0xffff0000))))};
}

// Inputs 2 group and 2 group + 1 of a tile's outputs.
template <Format format>
inline Pair load_pair(const std::byte* tile, int group) {
  if constexpr (format == Format::kBf16) return split(_mm512_loadu_si512(tile + group * 64));
  const __m256i bytes = _mm256_loadu_si256(
      reinterpret_cast<const __m256i*>(tile + group / 4 * 64 + group % 2 * 32));
  const __m512i words = _mm512_cvtepu8_epi16(bytes);
  const __m512i halves = group / 2 % 2 ? _mm512_slli_epi16(words, 8) : _mm512_slli_epi16(words, 12);
  const __m512i q = _mm512_srai_epi16(halves, 12);
  const __m512 scales = _mm512_loadu_ps(tile + 256);
  const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(q, 16), 16);
  const __m512i odd = _mm512_srai_epi32(q, 16);
  return {_mm512_castsi512_ps(round_to_bf16(_mm512_mul_ps(_mm512_cvtepi32_ps(even), scales))),
          _mm512_castsi512_ps(round_to_bf16(_mm512_mul_ps(_mm512_cvtepi32_ps(odd), scales)))};
}

template <Format format>
void sum_floats(const PackedMatrix& w, int pair, const std::byte* x, int64_t stride, int rows,
                float* panel) {
  const size_t tile_bytes = PackedMatrix::tile_bytes(format);
  const std::byte* tile = w.tiles.get() + pair * w.pair_bytes();
  __m512 sums[kRows][2] = {};
  for (int deep = 0; deep < w.depth; ++deep, tile += 2 * tile_bytes) {
    for (int group = 0; group < 16; ++group) {
      const Pair left = load_pair<format>(tile, group);
      const Pair right = load_pair<format>(tile + tile_bytes, group);
      for (int row = 0; row < rows; ++row) {
        const std::byte* const source = x + row * stride + deep * 64 + group * 4;
        const Pair inputs = split(_mm512_set1_epi32(load_int(source)));
        sums[row][0] = _mm512_fmadd_ps(inputs.even, left.even, sums[row][0]);
        sums[row][0] = _mm512_fmadd_ps(inputs.odd, left.odd, sums[row][0]);
        sums[row][1] = _mm512_fmadd_ps(inputs.even, right.even, sums[row][1]);
        sums[row][1] = _mm512_fmadd_ps(inputs.odd, right.odd, sums[row][1]);
      }
    }
  }
  for (int row = 0; row < rows; ++row) {
    _mm512_storeu_ps(panel + row * kPanelColumns, sums[row][0]);
    _mm512_storeu_ps(panel + row * kPanelColumns + 16, sums[row][1]);
  }
}

// VNNI multiplies unsigned with signed bytes: 128 is added to the inputs and taken off the sums.
void sum_bytes(const PackedMatrix& w, int pair, const std::byte* x, int64_t stride, int rows,
               float* panel) {
  const std::byte* tile = w.tiles.get() + pair * w.pair_bytes();
  __m512i sums[kRows][2] = {};
  for (int deep = 0; deep < w.depth; ++deep, tile += 2048) {
    for (int group = 0; group < 16; ++group) {
      const __m512i left = _mm512_loadu_si512(tile + group * 64);
      const __m512i right = _mm512_loadu_si512(tile + 1024 + group * 64);
      for (int row = 0; row < rows; ++row) {
        const std::byte* const source = x + row * stride + deep * 64 + group * 4;
        const __m512i inputs = _mm512_set1_epi32(load_int(source) ^ int(0x80808080));
        sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], inputs, left);
        sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], inputs, right);
      }
    }
  }
  for (int side = 0; side < 2; ++side) {
    const int column = pair * kPairOutputs + side * kTileOutputs;
    const __m512i shift = _mm512_slli_epi32(_mm512_loadu_si512(w.sums.data() + column), 7);
    for (int row = 0; row < rows; ++row) {
      _mm512_storeu_si512(panel + row * kPanelColumns + side * kTileOutputs,
                          _mm512_sub_epi32(sums[row][side], shift));
    }
  }
}

}  // namespace

void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  const int all = rows * parts(w.format);
  for (int row = 0; row < all; row += kRows) {
    const int count = all - row < kRows ? all - row : kRows;
    const std::byte* const data = x.data + row * x.stride;
    switch (w.format) {
      case Format::kBf16:
        sum_floats<Format::kBf16>(w, pair, data, x.stride, count, panel[row]);
        break;
      case Format::kInt8:
        sum_bytes(w, pair, data, x.stride, count, panel[row]);
        break;
      case Format::kInt4:
        sum_floats<Format::kInt4>(w, pair, data, x.stride, count, panel[row]);
        break;
    }
  }
  if (w.format == Format::kInt8) join_parts(w, pair, x, rows, panel);
}

}  // namespace slipstream::avx512
