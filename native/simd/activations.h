// Activation functions of vectors, for the epilogue of the matrix products. NaN gives NaN, because
// min and max of vectors.h return their second operand if either is NaN.
#pragma once

#include "vector_math.h"

#include "begin_target.h"

namespace SIMD {

// The error function as x P(x^2) / Q(x^2), a least-squares fit on (0, 3.93); beyond, it is 1 in
// float. Absolute error: 4e-7.
template <typename V>
INLINE V erf(V x) {
  constexpr float kEnd = 3.93f;
  constexpr float kP[] = {1.1283791065216064f,   0.19076308608055115f,   0.05278757959604263f,
                          0.003778738435357809f, 0.0002847921277862042f, 2.0421632598299766e-06f};
  constexpr float kQ[] = {1.0f,
                          0.5023921132087708f,
                          0.11424898356199265f,
                          0.014995680190622807f,
                          0.0011650080559775233f,
                          3.8005226087989286e-05f};
  x = min<V>(kEnd, max<V>(-kEnd, x));
  const V z = x * x;
  return x * polynomial(z, kP, 5) / polynomial(z, kQ, 5);
}

template <typename V>
INLINE V relu(V x) {
  return max<V>(0.0f, x);
}

// x / 2 (1 + erf(x / sqrt(2))): Hendrycks and Gimpel 2016.
template <typename V>
INLINE V gelu(V x) {
  const V half = x * 0.5f;
  return fma(half, erf<V>(x * 0.70710678118654752f), half);
}

// gelu(x) where the products' factors are rounded to 8 bits, with an absolute error of at most 2e-4
// for |x| < 1000: x (1/2 + x P(x^2)), where P is the minimax polynomial on (0, 3.9) that gives
// exactly 0 and x at the ends.
template <typename V>
INLINE V gelu_coarse(V x) {
  constexpr float kEnd = 3.9f;
  constexpr float kP[] = {0.398564037f,     -0.0653704585f, 0.00910142391f, -0.000878083572f,
                          5.43450286e-05f, -1.9141653e-06f, 2.88956739e-08f};
  const V bounded = min<V>(kEnd, max<V>(-kEnd, x));
  return x * fma<V>(bounded, polynomial(bounded * bounded, kP, 6), 0.5f);
}

// 1 / (1 + e^-x).
template <typename V>
INLINE V sigmoid(V x) {
  return 1.0f / (1.0f + exp(min<V>(88.0f, -x)));
}

// x / (1 + e^-x): Elfwing et al. 2017.
template <typename V>
INLINE V silu(V x) {
  return x / (1.0f + exp(min<V>(88.0f, -x)));
}

// silu(x) where the products' factors are rounded to 8 bits: relative error 1.5e-4, or 1e-35
// absolute.
INLINE Floats silu_coarse(Floats x) {
  constexpr float kLog2e = 1.442695041f;
  return x * reciprocal_coarse(1.0f + exp2_coarse(x * -kLog2e));
}

}  // namespace SIMD

#include "end_target.h"
