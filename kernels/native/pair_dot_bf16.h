// As pair_dot.h, where the CPU has avx512bf16: whoever includes this has it in its target.
#pragma once

#include <immintrin.h>

namespace slipstream {
namespace {

// One instruction. What is too small for a normal number counts as zero.
struct Bf16Dot {
  static __m512 add(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

}  // namespace
}  // namespace slipstream
