// Functions of eight floats at once. A NaN stays one: of two operands min and max return the second.
#pragma once

#include <immintrin.h>

#define AVX2_FMA __attribute__((target("avx2,fma")))
#define AVX2_FMA_INLINE __attribute__((target("avx2,fma"), always_inline)) inline

// e^x as 2^n e^r, |r| <= ln(2) / 2, by Taylor's series. 0 and 1.6e38 beyond what a float holds.
// Error: two units in the last place.
AVX2_FMA_INLINE __m256 exponential(__m256 x) {
  constexpr float kLargest = 88.0f, kSmallest = -87.0f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // their sum: ln(2)
  constexpr float kFactors[] = {1.0f,        1.0f,         1.0f / 2,    1.0f / 6,
                                1.0f / 24.0f, 1.0f / 120.0f, 1.0f / 720.0f, 1.0f / 5040.0f};
  const __m256 is_zero = _mm256_cmp_ps(x, _mm256_set1_ps(kSmallest), _CMP_LT_OQ);
  x = _mm256_min_ps(_mm256_set1_ps(kLargest), _mm256_max_ps(_mm256_set1_ps(kSmallest), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.4426950408889634f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2High), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Low), r);
  __m256 power = _mm256_set1_ps(kFactors[7]);
  for (int i = 6; i >= 0; i--) power = _mm256_fmadd_ps(power, r, _mm256_set1_ps(kFactors[i]));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  power = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(power), exponent));
  return _mm256_andnot_ps(is_zero, power);
}

// erf as x P(x^2) / Q(x^2), fitted by least squares on (0, 3.93), beyond which it is 1 in float.
// Error: 4e-7.
AVX2_FMA_INLINE __m256 error_function(__m256 x) {
  constexpr float kEnd = 3.93f;
  constexpr float kP[] = {1.1283791065216064f,   0.19076308608055115f,   0.05278757959604263f,
                          0.003778738435357809f, 0.0002847921277862042f, 2.0421632598299766e-06f};
  constexpr float kQ[] = {1.0f,
                          0.5023921132087708f,
                          0.11424898356199265f,
                          0.014995680190622807f,
                          0.0011650080559775233f,
                          3.8005226087989286e-05f};
  x = _mm256_min_ps(_mm256_set1_ps(kEnd), _mm256_max_ps(_mm256_set1_ps(-kEnd), x));
  const __m256 z = _mm256_mul_ps(x, x);
  __m256 p = _mm256_set1_ps(kP[5]), q = _mm256_set1_ps(kQ[5]);
  for (int i = 4; i >= 0; i--) {
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kP[i]));
    q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(kQ[i]));
  }
  return _mm256_div_ps(_mm256_mul_ps(x, p), q);
}

AVX2_FMA_INLINE __m256 relu(__m256 x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }

// Hendrycks and Gimpel 2016, with the error function.
AVX2_FMA_INLINE __m256 gelu(__m256 x) {
  const __m256 half = _mm256_mul_ps(x, _mm256_set1_ps(0.5f));
  const __m256 erf = error_function(_mm256_mul_ps(x, _mm256_set1_ps(0.70710678118654752f)));
  return _mm256_fmadd_ps(half, erf, half);
}

// x / (1 + e^-x): Elfwing et al. 2017.
AVX2_FMA_INLINE __m256 silu(__m256 x) {
  const __m256 below = exponential(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), below));
}
