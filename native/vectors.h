// Mathematics on eight floats at once, for processors with AVX2, FMA and conversions of halves.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define AVX2_FMA __attribute__((target("avx2,fma,f16c")))
#define AVX2_FMA_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) inline

namespace vectors {

AVX2_FMA inline __m256 polynomial(__m256 x, const float* coefficients, int degree) {
  __m256 y = _mm256_set1_ps(coefficients[degree]);
  for (int i = degree - 1; i >= 0; i--) y = _mm256_fmadd_ps(y, x, _mm256_set1_ps(coefficients[i]));
  return y;
}

// e^x for x <= 88, to 0.9 units in the last place; 0 where that is below the normal numbers.
//
// x = n ln 2 + r with ln 2 in two parts, the first of few bits (Cody and Waite 1980), and
// e^r = 1 + r + r^2 p(r), where p is the best of its degree for |r| <= ln 2 / 2. A number that
// is larger by kRound has n in its last bits, and the bias of an exponent besides.
AVX2_FMA inline __m256 exp(__m256 x) {
  constexpr float kHigh = 0.693359375f, kLow = -2.1219444e-4f, kLog2e = 1.442695041f;
  constexpr float kRound = 12582912.0f + 127.0f;
  constexpr float kLowest = -87.33654f;  // ln of the smallest normal number
  constexpr float p[] = {1.0f, 1.0f, 0.49999994f, 0.16666521f, 0.04166839f, 0.008368745f,
                         0.0013814539f};
  const __m256 round = _mm256_set1_ps(kRound);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2e), round);
  const __m256 n = _mm256_sub_ps(shifted, round);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kHigh), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLow), r);
  const __m256 power =
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23));
  const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(kLowest), _CMP_LT_OQ);  // no NaN is
  return _mm256_andnot_ps(tiny, _mm256_mul_ps(polynomial(r, p, 6), power));
}

// 1 - 2 / (e^(2 |x|) + 1) with the sign of x; near 0, x + x^3 p(x^2). To 1.3
// units in the last place.
AVX2_FMA inline __m256 tanh(__m256 x) {
  constexpr float kNear = 0.625f, kSaturated = 10.0f;
  constexpr float p[] = {-0.33333284f, 0.13331491f, -0.053743497f, 0.020650586f, -0.0057170447f};
  const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
  const __m256 magnitude = _mm256_andnot_ps(sign, x);
  const __m256 square = _mm256_mul_ps(x, x);
  const __m256 near = _mm256_fmadd_ps(_mm256_mul_ps(polynomial(square, p, 4), square), x, x);
  const __m256 bounded = _mm256_min_ps(_mm256_set1_ps(kSaturated), magnitude);  // a NaN stays
  const __m256 power = exp(_mm256_add_ps(bounded, bounded));
  const __m256 far =
      _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(power, one)));
  const __m256 signed_far = _mm256_or_ps(far, _mm256_and_ps(sign, x));
  return _mm256_blendv_ps(signed_far, near,
                          _mm256_cmp_ps(magnitude, _mm256_set1_ps(kNear), _CMP_LT_OQ));
}

AVX2_FMA inline float exp(float x) { return _mm256_cvtss_f32(exp(_mm256_set1_ps(x))); }

AVX2_FMA inline float sum(__m256 x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Of numbers: a NaN may be passed over.
AVX2_FMA inline float largest(__m256 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The sums of four vectors, each in the same order.
AVX2_FMA inline __m128 sums(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

// Eight rows become eight columns.
AVX2_FMA inline void transpose(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  __m256 pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    const __m256 a = _mm256_loadu_ps(x + i * x_stride), b = _mm256_loadu_ps(x + (i + 1) * x_stride);
    pairs[i] = _mm256_unpacklo_ps(a, b);
    pairs[i + 1] = _mm256_unpackhi_ps(a, b);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; j++) {
      const __m256 a = pairs[i + j], b = pairs[i + j + 2];
      fours[i + 2 * j] = _mm256_shuffle_ps(a, b, 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(a, b, 0xee);
    }
  }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(y + i * y_stride, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
    _mm256_storeu_ps(y + (i + 4) * y_stride, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
  }
}

}  // namespace vectors
