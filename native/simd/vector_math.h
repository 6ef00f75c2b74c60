// Exponential and hyperbolic tangent of vectors of floats, for the softmax and logit cap of
// attention, the activations, and log-sum-exp.
#pragma once

#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

// coefficients[0] + coefficients[1] x + ... by Horner's rule.
template <typename V>
INLINE V polynomial(V x, const float* coefficients, int degree) {
  V y = coefficients[degree];
  for (int i = degree - 1; i >= 0; i--) y = fma<V>(y, x, coefficients[i]);
  return y;
}

// Adding this to a float rounds it to an integer, in the lowest bits of the significand, and adds
// the exponent bias.
constexpr float kRound = 12582912.0f + 127.0f;

// e^x for x <= 88, to 0.9 ulp; 0 where the result would be subnormal. NaN gives NaN.
//
// x = n ln 2 + r with ln 2 in two parts, the first of few bits (Cody and Waite 1980), and
// e^r = 1 + r + r^2 p(r), where p is the minimax polynomial for |r| <= ln 2 / 2.
template <typename V>
INLINE V exp(V x) {
  using Bits = decltype(x < x);
  constexpr float kHigh = 0.693359375f, kLow = -2.1219444e-4f, kLog2e = 1.442695041f;
  constexpr float kLowest = -87.33654f;  // ln of the smallest normal number
  constexpr float p[] = {1.0f, 1.0f, 0.49999994f, 0.16666521f, 0.04166839f, 0.008368745f,
                         0.0013814539f};
  const V shifted = fma<V>(x, kLog2e, kRound);
  const V n = shifted - kRound;
  V r = fma<V>(n, -kHigh, x);
  r = fma<V>(n, -kLow, r);
  const Bits power = reinterpret_cast<Bits>(shifted) << 23;
  // A NaN is not below kLowest.
  return x < kLowest ? V(0.0f) : polynomial(r, p, 6) * reinterpret_cast<V>(power);
}

// 2^r for r from 0 to 1, a minimax polynomial with an error of 8e-5.
constexpr float kCoarseExp2[] = {0.9999252f, 0.69583356f, 0.22606716f, 0.07802452f};

// 2^x with a relative error of 8e-5. AVX-512 gives 0 for x = -inf, and inf from 128 on; others clamp
// x to -125 .. 127. NaN gives NaN.
INLINE Floats exp2_coarse(Floats x) {
#if SIMD_BITS == 512
  constexpr int kAboveFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const __m512 exponent = reinterpret_cast<__m512>(x);
  const Floats rest = reinterpret_cast<Floats>(_mm512_reduce_ps(exponent, kAboveFloor));
  const __m512 power = reinterpret_cast<__m512>(polynomial(rest, kCoarseExp2, 3));
  return reinterpret_cast<Floats>(_mm512_scalef_ps(power, exponent));  // takes its floor
#else
  const Floats bounded = min<Floats>(127.0f, max<Floats>(-125.0f, x));
  const Floats shifted = (bounded - 0.5f) + kRound;  // rounds to the floor, or one below
  const Floats rest = bounded - (shifted - kRound);
  const Ints power = reinterpret_cast<Ints>(shifted) << 23;
  return polynomial(rest, kCoarseExp2, 3) * reinterpret_cast<Floats>(power);
#endif
}

// 1 / x with a relative error of 6.2e-5, for normal results.
INLINE Floats reciprocal_coarse(Floats x) {
#if SIMD_BITS == 512
  return reinterpret_cast<Floats>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
#else
  return 1.0f / x;
#endif
}

INLINE float exp_scalar(float x) { return exp(FloatsOf<4>(x))[0]; }

// tanh to 1.3 ulp: 1 - 2 / (e^(2 |x|) + 1) with the sign of x; for |x| < 0.625, x + x^3 p(x^2).
// NaN gives NaN.
template <typename V>
INLINE V tanh(V x) {
  constexpr float kNear = 0.625f, kSaturated = 10.0f;
  constexpr float p[] = {-0.33333284f, 0.13331491f, -0.053743497f, 0.020650586f, -0.0057170447f};
  const V size = abs(x), square = x * x;
  const V near = fma(polynomial(square, p, 4) * square, x, x);
  const V bounded = min<V>(kSaturated, size);  // NaN stays NaN
  const V far = 1.0f - 2.0f / (exp(bounded + bounded) + 1.0f);
  return size < kNear ? near : __builtin_elementwise_copysign(far, x);
}

}  // namespace SIMD

#include "end_target.h"
