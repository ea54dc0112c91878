// Which instructions a file is compiled for: include it before anything else. The library is built
// for one of two families of CPUs; sources that differ between them end in the family's name.
#pragma once

#ifdef SLIPSTREAM_AVX2
#pragma GCC target("avx2,fma")
#include "avx2.h"
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")
#include <immintrin.h>
#endif
