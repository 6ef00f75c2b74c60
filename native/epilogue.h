// What follows a product, while its sums are still in registers: y = activation(sum + bias) + rest.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#define AVX2_FMA __attribute__((target("avx2,fma")))
#define AVX2_FMA_INLINE __attribute__((target("avx2,fma"), always_inline)) inline

enum class Activation : int32_t { kNone = 0, kRelu = 1, kGelu = 2 };  // server/backend/kernels/epilogue.py

struct Epilogue {
  const float* bias;  // [outputs], or null
  const float* rest;  // [rows, outputs], or null
  Activation activation;

  bool is_empty() const { return !bias && !rest && activation == Activation::kNone; }
};

// erf as x P(x^2) / Q(x^2), fitted by least squares on (0, 3.93), beyond which it is 1 in float.
// Error: 4e-7.
AVX2_FMA_INLINE __m256 error_function(__m256 x) {
  constexpr float kEnd = 3.93f;
  constexpr float kP[] = {1.1283791065216064f,    0.19076308608055115f,   0.05278757959604263f,
                          0.003778738435357809f, 0.0002847921277862042f, 2.0421632598299766e-06f};
  constexpr float kQ[] = {1.0f,
                          0.5023921132087708f,
                          0.11424898356199265f,
                          0.014995680190622807f,
                          0.0011650080559775233f,
                          3.8005226087989286e-05f};
  // A NaN stays one: the second operand is what the instruction returns for it.
  x = _mm256_min_ps(_mm256_set1_ps(kEnd), _mm256_max_ps(_mm256_set1_ps(-kEnd), x));
  const __m256 z = _mm256_mul_ps(x, x);
  __m256 p = _mm256_set1_ps(kP[5]), q = _mm256_set1_ps(kQ[5]);
  for (int i = 4; i >= 0; i--) {
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kP[i]));
    q = _mm256_fmadd_ps(q, z, _mm256_set1_ps(kQ[i]));
  }
  return _mm256_div_ps(_mm256_mul_ps(x, p), q);
}

// Hendrycks and Gimpel 2016, with the error function.
AVX2_FMA_INLINE __m256 gelu(__m256 x) {
  const __m256 half = _mm256_mul_ps(x, _mm256_set1_ps(0.5f));
  const __m256 erf = error_function(_mm256_mul_ps(x, _mm256_set1_ps(0.70710678118654752f)));
  return _mm256_fmadd_ps(half, erf, half);
}

// Eight sums, of which `bias` and `rest` are the neighbours.
AVX2_FMA_INLINE __m256 finish(__m256 sum, Activation activation, const float* bias,
                              const float* rest) {
  if (bias) sum = _mm256_add_ps(sum, _mm256_loadu_ps(bias));
  if (activation == Activation::kGelu) sum = gelu(sum);
  // A NaN stays one, as above.
  if (activation == Activation::kRelu) sum = _mm256_max_ps(_mm256_setzero_ps(), sum);
  if (rest) sum = _mm256_add_ps(sum, _mm256_loadu_ps(rest));
  return sum;
}
