// Products on AMX tiles: 16 rows x 64 bytes of inputs, times the same of 16 outputs.
//
// Legend: tiles 0 to 3 are sums (rows x 16 outputs), 4 and 5 activations, 6 and 7 weights.
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16,amx-int8")

#include <immintrin.h>

#include "products.h"
#include "vector.h"

namespace slipstream::amx {
namespace {

// 16 outputs x 32 inputs of bf16 out of a tile of int4: (inputs 2i, 2i + 1) of an output side by
// side.
void unpack_int4(const std::byte* tile, std::byte* unpacked) {
  const __m512 scales = _mm512_loadu_ps(tile + 256);
  for (int part = 0; part < 8; ++part) {
    // 64 weights: inputs 4 part to 4 part + 3, in two rows of 16 outputs x 2 inputs.
    const __m512i bytes = _mm512_loadu_si512(tile + part / 2 * 64);
    const __m512i halves = part % 2 ? _mm512_srli_epi16(bytes, 4) : bytes;
    const __m512i low = _mm512_and_si512(halves, _mm512_set1_epi8(15));
    const __m512i q = _mm512_sub_epi8(_mm512_xor_si512(low, _mm512_set1_epi8(8)),
                                      _mm512_set1_epi8(8));
    for (int row = 0; row < 2; ++row) {
      const __m256i pairs = row ? _mm512_extracti64x4_epi64(q, 1) : _mm512_castsi512_si256(q);
      const __m512i words = _mm512_cvtepi8_epi16(pairs);
      const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(words, 16), 16);
      const __m512i odd = _mm512_srai_epi32(words, 16);
      const __m512 even_w = _mm512_mul_ps(_mm512_cvtepi32_ps(even), scales);
      const __m512 odd_w = _mm512_mul_ps(_mm512_cvtepi32_ps(odd), scales);
      const __m512i both = _mm512_or_si512(_mm512_srli_epi32(round_to_bf16(even_w), 16),
                                           round_to_bf16(odd_w));
      _mm512_storeu_si512(unpacked + (part * 2 + row) * 64, both);
    }
  }
}

// How far ahead weights are called for: the second-level cache first, then the first. Loads of tiles
// do not wake the hardware's own prefetcher early enough.
constexpr int kFarAhead = 8192;
constexpr int kAhead = 2048;

// Calls for the part-th of `parts` shares of what lies ahead of two tiles of weights. All at once they
// would take the buffers that the loads of tiles need; between those nobody waits for them.
template <Format format, int parts>
inline void call_for(const std::byte* weights, int part) {
  constexpr int kLines = 2 * int(PackedMatrix::tile_bytes(format)) / 64;
  for (int line = part * kLines / parts; line < (part + 1) * kLines / parts; ++line) {
    _mm_prefetch(weights + kFarAhead + line * 64, _MM_HINT_T1);
    _mm_prefetch(weights + kAhead + line * 64, _MM_HINT_T0);
  }
}

// Sums of a block of rows and one tile of weights. Tiles are named where they are used: they are part
// of an instruction, and no argument.
template <Format format>
struct Multiply {
  static void low_left() { _tile_dpbf16ps(0, 4, 6); }
  static void low_right() { _tile_dpbf16ps(1, 4, 7); }
  static void high_left() { _tile_dpbf16ps(2, 5, 6); }
  static void high_right() { _tile_dpbf16ps(3, 5, 7); }
};

template <>
struct Multiply<Format::kInt8> {
  static void low_left() { _tile_dpbssd(0, 4, 6); }
  static void low_right() { _tile_dpbssd(1, 4, 7); }
  static void high_left() { _tile_dpbssd(2, 5, 6); }
  static void high_right() { _tile_dpbssd(3, 5, 7); }
};

// Adds the products of one tile's inputs to the sums. Loads and products take turns: neither waits
// for all of the others.
template <Format format, bool two_blocks>
inline void step(const std::byte* x, int64_t stride, const std::byte* w) {
  constexpr int kParts = two_blocks ? 8 : 5;
  const auto call = [w](int part) { call_for<format, kParts>(w, part); };
  const std::byte* left = w;
  const std::byte* right = w + PackedMatrix::tile_bytes(format);
  alignas(64) std::byte unpacked[2][1024];
  if constexpr (format == Format::kInt4) {
    unpack_int4(left, unpacked[0]);
    unpack_int4(right, unpacked[1]);
    left = unpacked[0];
    right = unpacked[1];
  }
  _tile_loadd(6, left, 64);
  call(0);
  _tile_loadd(4, x, stride);
  call(1);
  Multiply<format>::low_left();
  call(2);
  _tile_loadd(7, right, 64);
  call(3);
  Multiply<format>::low_right();
  call(4);
  if constexpr (two_blocks) {
    _tile_loadd(5, x + 16 * stride, stride);
    call(5);
    Multiply<format>::high_left();
    call(6);
    Multiply<format>::high_right();
    call(7);
  }
}

template <Format format, bool two_blocks>
void sum(const PackedMatrix& w, int pair, const Activations& x, float* panel) {
  constexpr int64_t kStride = kPanelColumns * sizeof(float);
  const std::byte* tiles = w.tiles.get() + pair * w.pair_bytes();
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (two_blocks) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int deep = 0; deep < w.depth; ++deep) {
    step<format, two_blocks>(x.data + deep * 64, x.stride, tiles);
    tiles += 2 * PackedMatrix::tile_bytes(format);
  }
  _tile_stored(0, panel, kStride);
  _tile_stored(1, panel + 16, kStride);
  if constexpr (two_blocks) {
    _tile_stored(2, panel + 16 * kPanelColumns, kStride);
    _tile_stored(3, panel + 16 * kPanelColumns + 16, kStride);
  }
}

template <Format format>
void multiply_as(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  if (rows * parts(format) > 16) {
    sum<format, true>(w, pair, x, panel[0]);
  } else {
    sum<format, false>(w, pair, x, panel[0]);
  }
  if constexpr (format == Format::kInt8) join_parts(w, pair, x, rows, panel);
}

}  // namespace

void multiply(const PackedMatrix& w, int pair, const Activations& x, int rows, Panel panel) {
  switch (w.format) {
    case Format::kBf16:
      return multiply_as<Format::kBf16>(w, pair, x, rows, panel);
    case Format::kInt8:
      return multiply_as<Format::kInt8>(w, pair, x, rows, panel);
    case Format::kInt4:
      return multiply_as<Format::kInt4>(w, pair, x, rows, panel);
  }
}

}  // namespace slipstream::amx
