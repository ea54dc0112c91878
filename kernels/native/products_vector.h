// Products on vectors: the same packed tiles as AMX's, a vector of 16 outputs at a time. 16-bit
// weights are multiplied as pairs of bf16, by whoever includes this; 8-bit ones by VNNI.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "products.h"
#include "vector.h"

namespace slipstream {
namespace {

// So many rows share a reading of the weights, of both tiles of a pair or of one after the other:
// their sums just fit the registers.
#ifdef SLIPSTREAM_AVX2
constexpr int kRows = 4, kSides = 1;
#else
constexpr int kRows = 8, kSides = 2;
#endif
// Weights that are read for the first time are fetched so many pairs of tiles ahead: a reading of
// every other tile is no stream to the CPU, and with many rows to a group the CPU does not look far
// enough ahead by itself.
constexpr int kPairsAhead = 4;

// A group of both tiles of a pair.
inline void fetch_ahead(const std::byte* tile, size_t tile_bytes, int group) {
  const std::byte* const ahead = tile + 2 * tile_bytes * kPairsAhead + group * tile_bytes / 8;
  for (size_t line = 0; line < tile_bytes / 8; line += 64) {
    _mm_prefetch(ahead + line, _MM_HINT_T0);
  }
}

int load_int(const std::byte* source) {
  int value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

// Inputs 2 group and 2 group + 1 of a tile's outputs, in bf16.
template <Format format>
inline __m512i load_pairs(const std::byte* tile, int group) {
  if constexpr (format == Format::kBf16) return _mm512_loadu_si512(tile + group * 64);
  const __m256i bytes = _mm256_loadu_si256(
      reinterpret_cast<const __m256i*>(tile + group / 4 * 64 + group % 2 * 32));
  const __m512i words = _mm512_cvtepu8_epi16(bytes);
  const __m512i halves = group / 2 % 2 ? _mm512_slli_epi16(words, 8) : _mm512_slli_epi16(words, 12);
  const __m512i q = _mm512_srai_epi16(halves, 12);
  const __m512 scales = _mm512_loadu_ps(tile + 256);
  const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(q, 16), 16);
  const __m512i high = _mm512_srai_epi32(q, 16);
  const __m512i evens = round_to_bf16(_mm512_mul_ps(_mm512_cvtepi32_ps(low), scales));
  const __m512i odds = round_to_bf16(_mm512_mul_ps(_mm512_cvtepi32_ps(high), scales));
  return _mm512_or_si512(_mm512_srli_epi32(evens, 16), odds);
}

// Sums of kSides tiles of a pair, from `side` on.
template <class Dot, Format format, int rows>
void sum_pairs(const PackedMatrix& w, int pair, int side, const std::byte* x, int64_t stride,
               float* panel) {
  const size_t tile_bytes = PackedMatrix::tile_bytes(format);
  const std::byte* tile = w.tiles.get() + pair * w.pair_bytes() + side * tile_bytes;
  __m512 sums[rows][kSides] = {};
  for (int deep = 0; deep < w.depth; ++deep, tile += 2 * tile_bytes) {
    for (int group = 0; group < 16; ++group) {
      if (side == 0) fetch_ahead(tile, tile_bytes, group);
      __m512i weights[kSides];
      for (int i = 0; i < kSides; ++i) {
        weights[i] = load_pairs<format>(tile + i * tile_bytes, group);
      }
#pragma GCC unroll 8
      for (int row = 0; row < rows; ++row) {
        const std::byte* const source = x + row * stride + deep * 64 + group * 4;
        const __m512i inputs = _mm512_set1_epi32(load_int(source));
        for (int i = 0; i < kSides; ++i) {
          sums[row][i] = Dot::add(sums[row][i], inputs, weights[i]);
        }
      }
    }
  }
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < kSides; ++i) {
      _mm512_storeu_ps(panel + row * kPanelColumns + (side + i) * kTileOutputs, sums[row][i]);
    }
  }
}

#ifdef SLIPSTREAM_AVX2
inline __m512i add_bytes(__m512i sum, __m512i inputs, __m512i weights) {
  return _mm512_dpbusd_epi32(sum, inputs, weights);
}
#else
// As the intrinsic, around which GCC moves every sum from register to register.
inline __m512i add_bytes(__m512i sum, __m512i inputs, __m512i weights) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(inputs), "v"(weights));
  return sum;
}
#endif

// Inputs are 128 too large (input_offset): what that adds to the sums is taken off.
template <int rows>
void sum_bytes(const PackedMatrix& w, int pair, int side, const std::byte* x, int64_t stride,
               float* panel) {
  constexpr size_t kTileBytes = 1024;
  const std::byte* tile = w.tiles.get() + pair * w.pair_bytes() + side * kTileBytes;
  __m512i sums[rows][kSides] = {};
  for (int deep = 0; deep < w.depth; ++deep, tile += 2 * kTileBytes) {
    for (int group = 0; group < 16; ++group) {
      if (side == 0) fetch_ahead(tile, kTileBytes, group);
      __m512i weights[kSides];
      for (int i = 0; i < kSides; ++i) {
        weights[i] = _mm512_loadu_si512(tile + i * kTileBytes + group * 64);
      }
#pragma GCC unroll 8
      for (int row = 0; row < rows; ++row) {
        const std::byte* const source = x + row * stride + deep * 64 + group * 4;
        const __m512i inputs = _mm512_set1_epi32(load_int(source));
        for (int i = 0; i < kSides; ++i) {
          sums[row][i] = add_bytes(sums[row][i], inputs, weights[i]);
        }
      }
    }
  }
  for (int i = 0; i < kSides; ++i) {
    const int column = (side + i) * kTileOutputs;
    const __m512i all = _mm512_loadu_si512(w.sums.data() + pair * kPairOutputs + column);
    const __m512i shift = _mm512_slli_epi32(all, 7);
    for (int row = 0; row < rows; ++row) {
      _mm512_storeu_si512(panel + row * kPanelColumns + column,
                          _mm512_sub_epi32(sums[row][i], shift));
    }
  }
}

template <class Dot, int rows>
void sum_rows(const PackedMatrix& w, int pair, const std::byte* x, int64_t stride, float* panel) {
  for (int side = 0; side < 2; side += kSides) {
    switch (w.format) {
      case Format::kBf16:
        sum_pairs<Dot, Format::kBf16, rows>(w, pair, side, x, stride, panel);
        break;
      case Format::kInt8:
        sum_bytes<rows>(w, pair, side, x, stride, panel);
        break;
      case Format::kInt4:
        sum_pairs<Dot, Format::kInt4, rows>(w, pair, side, x, stride, panel);
        break;
    }
  }
}

// The number of rows is known when this is compiled, or their sums would not stay in registers.
template <class Dot, int rows = kRows>
void sum_up_to(int count, const PackedMatrix& w, int pair, const std::byte* x, int64_t stride,
               float* panel) {
  if constexpr (rows > 0) {
    if (count == rows) return sum_rows<Dot, rows>(w, pair, x, stride, panel);
    sum_up_to<Dot, rows - 1>(count, w, pair, x, stride, panel);
  }
}

template <class Dot>
void multiply_on_vectors(const PackedMatrix& w, int pair, const Activations& x, int rows,
                         Panel panel) {
  const int all = rows * parts(w.format);
  for (int row = 0; row < all; row += kRows) {
    const int count = all - row < kRows ? all - row : kRows;
    sum_up_to<Dot>(count, w, pair, x.data + row * x.stride, x.stride, panel[row]);
  }
  if (w.format == Format::kInt8) join_parts(w, pair, x, rows, panel);
}

}  // namespace
}  // namespace slipstream
