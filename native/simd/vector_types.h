// Vectors of SIMD_BITS: types, loads, stores. Floats and Ints hold kLanes values; Floats8 is always
// 256 bits wide, for head sizes that are multiples of 8 only.
#pragma once

#include <stdint.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) inline

#include "begin_target.h"

namespace SIMD {

constexpr int64_t kLanes = SIMD_BITS / 32;

template <int64_t N>
using FloatsOf = float __attribute__((ext_vector_type(N)));
template <int64_t N>
using IntsOf = int32_t __attribute__((ext_vector_type(N)));
using Floats = FloatsOf<kLanes>;
using Ints = IntsOf<kLanes>;
using Floats8 = FloatsOf<8>;

constexpr int64_t kLanes8 = 8;  // in a Floats8

// Number of floats in a V.
template <typename V>
constexpr int64_t kLanesOf = sizeof(V) / sizeof(float);

// Unaligned loads and stores.
template <typename V = Floats, typename T>
INLINE V load(const T* from) {
  V value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <typename V, typename T>
INLINE void store(T* to, V value) {
  memcpy(to, &value, sizeof value);
}

// Loads or stores the first `count` lanes; load_n sets the other lanes to 0. Accesses no memory
// past them.
template <typename V = Floats>
INLINE V load_n(const float* from, int64_t count) {
  V value = 0.0f;
  memcpy(&value, from, count * sizeof(float));
  return value;
}

template <typename V>
INLINE void store_n(float* to, V value, int64_t count) {
  memcpy(to, &value, count * sizeof(float));
}

// Adds the upper 256 bits of a vector to its lower 256 bits.
INLINE Floats8 fold_to_8(Floats8 x) { return x; }
INLINE Floats8 fold_to_8(FloatsOf<16> x) { return x.lo + x.hi; }

}  // namespace SIMD

#include "end_target.h"
