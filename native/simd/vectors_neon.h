// The operations on vectors that need intrinsics: NEON, two registers for each vector of 256 bits.
#pragma once

#include <arm_neon.h>

#include "vector_types.h"

#include "begin_target.h"

namespace SIMD {

static_assert(SIMD_BITS == 256, "a vector fills two registers");

// Loads kLanes values in half precision.
INLINE Floats load_float16(const uint16_t* from) {
  using Halves = _Float16 __attribute__((ext_vector_type(kLanes)));
  return __builtin_convertvector(load<Halves>(from), Floats);
}

// {reduce_sum(a), .., reduce_sum(d)}, each with the same order of additions.
INLINE FloatsOf<4> reduce_sum_4(Floats8 a, Floats8 b, Floats8 c, Floats8 d) {
  const auto add = [](FloatsOf<4> x, FloatsOf<4> y) __attribute__((always_inline)) {
    return vpaddq_f32(x, y);
  };
  return add(add(a.lo, b.lo), add(c.lo, d.lo)) + add(add(a.hi, b.hi), add(c.hi, d.hi));
}

// Whether any lane of a comparison is true.
INLINE bool any_true(IntsOf<8> mask) { return vmaxvq_u32(mask.lo | mask.hi) != 0; }

// Rounds to nearest, ties to even.
INLINE IntsOf<8> nearest_int(FloatsOf<8> x) {
  IntsOf<8> value;
  value.lo = vcvtnq_s32_f32(x.lo), value.hi = vcvtnq_s32_f32(x.hi);
  return value;
}

// Eight lanes as 16-bit integers, saturated.
INLINE int16x8_t saturated_words(IntsOf<8> x) {
  return vqmovn_high_s32(vqmovn_s32(x.lo), x.hi);
}

// Stores the lowest byte of each lane, -128 .. 127.
INLINE void store_low_bytes(int8_t* to, IntsOf<8> x) { vst1_s8(to, vmovn_s16(saturated_words(x))); }

// Stores with saturation to 0 .. 255.
INLINE void store_saturated_u8(uint8_t* to, IntsOf<8> x) {
  vst1_u8(to, vqmovun_s16(saturated_words(x)));
}

// Stores four vectors + 128 as bytes, saturated.
INLINE void store_4_biased_bytes(uint8_t* to, const IntsOf<8>* x) {
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const int8x8_t low = vqmovn_s16(saturated_words(x[i]));
    const int8x16_t bytes = vqmovn_high_s16(low, saturated_words(x[i + 1]));
    vst1q_u8(to + i * kLanes, veorq_u8(bytes, vdupq_n_u8(128)));
  }
}

// Subtracts the zero point 128 from each byte: gives signed bytes.
template <typename V>
INLINE V without_zero_points(V bytes) {
  return bytes ^ static_cast<int>(0x80808080);
}

// Adds the products of the four signed bytes in each lane of x and y.
INLINE Ints add_dot_products(Ints sums, Ints x, Ints y) {
  Ints value;
  value.lo = vdotq_s32(sums.lo, x.lo, y.lo), value.hi = vdotq_s32(sums.hi, x.hi, y.hi);
  return value;
}

// y[c][r] = x[r][c] for 4 rows and 4 columns; strides in floats.
INLINE void transpose_4x4(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  float32x4_t rows[4];
  for (int i = 0; i < 4; i++) rows[i] = vld1q_f32(x + i * x_stride);
  const float32x4x2_t even = vzipq_f32(rows[0], rows[2]), odd = vzipq_f32(rows[1], rows[3]);
  for (int i = 0; i < 2; i++) {
    const float32x4x2_t columns = vzipq_f32(even.val[i], odd.val[i]);
    for (int j = 0; j < 2; j++) vst1q_f32(y + (2 * i + j) * y_stride, columns.val[j]);
  }
}

// The same for 8 rows and 8 columns.
inline void transpose_8x8(const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 8; j += 4) {
      transpose_4x4(x + i * x_stride + j, x_stride, y + j * y_stride + i, y_stride);
    }
  }
}

}  // namespace SIMD

#include "end_target.h"
