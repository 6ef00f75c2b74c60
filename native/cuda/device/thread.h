// Shared by all kernels: thread indices, 16-bit floats, vectors of them, and sums over a block.
#pragma once

namespace device {

using uint16 = unsigned short;
using uint = unsigned;

constexpr int kWarp = 32, kMaxWarps = 32, kMaxThreads = kMaxWarps * kWarp;

// 16 bytes, loaded and stored by one instruction.
using Words = uint __attribute__((ext_vector_type(4)));

}  // namespace device

#ifdef __NVPTX__
#include "intrinsics.h"
#else
#include "../emulator/intrinsics.h"
#endif

#define UNROLLED _Pragma("unroll")

namespace device {

inline int lane() { return thread() % kWarp; }
inline int warp() { return thread() / kWarp; }
inline int num_warps() { return (num_threads() + kWarp - 1) / kWarp; }

constexpr float kLog2E = 1.4426950408889634f;
inline float exp(float x) { return exp2(x * kLog2E); }

// Element types: 16-bit floats; arithmetic is fp32. pair(): packs two into a word.
struct Half {
  static constexpr bool kIsBFloat = false;
  _Float16 bits;
  static float widen(Half x) { return static_cast<float>(x.bits); }
  static Half narrow(float x) { return {static_cast<_Float16>(x)}; }
  static uint pair(float low, float high) { return nearest_halves(low, high); }
};

struct BFloat {
  static constexpr bool kIsBFloat = true;
  uint16 bits;
  static float widen(BFloat x) {
    return __builtin_bit_cast(float, static_cast<uint>(x.bits) << 16);
  }
  static BFloat narrow(float x) { return {nearest_bfloat(x)}; }
  static uint pair(float low, float high) { return nearest_bfloats(low, high); }
};

// Elements of a 16-byte vector.
constexpr int kWide = 8;

template <typename T>
struct Wide {
  float values[kWide];

  static Wide load(const T* from) { return of(*reinterpret_cast<const Words*>(from)); }

  static Wide of(Words words) {
    Wide wide;
    UNROLLED
    for (int i = 0; i < kWide; i++) {
      const uint16 bits = static_cast<uint16>(words[i / 2] >> (16 * (i % 2)));
      wide.values[i] = T::widen(__builtin_bit_cast(T, bits));
    }
    return wide;
  }

  // Adds the vector at `from`, rounded to T like a sum that a kernel stores.
  void add(const T* from) { add(load(from)); }
  void add(const Wide& added) {
    UNROLLED
    for (int i = 0; i < kWide; i++) values[i] = T::widen(T::narrow(values[i] + added.values[i]));
  }

  void store(T* to) const { *reinterpret_cast<Words*>(to) = narrowed(); }

  Words narrowed() const {
    Words words;
    UNROLLED
    for (int i = 0; i < kWide / 2; i++) words[i] = T::pair(values[2 * i], values[2 * i + 1]);
    return words;
  }
};

// Calls use(i, load(i)) for i = begin, begin + step, … below `end`. It starts 8 loads before it
// uses the first value, to overlap their latencies. `load` must call the loads of intrinsics.h,
// which the compiler does not reorder.
template <typename Index, typename Load, typename Use>
inline void for_each_loaded(Index begin, Index end, Index step, Load load, Use use) {
  constexpr int kAtOnce = 8;
  for (Index first = begin; first < end; first += kAtOnce * step) {
    decltype(load(begin)) values[kAtOnce];
    UNROLLED
    for (int n = 0; n < kAtOnce; n++) {
      const Index i = first + n * step;
      values[n] = load(i < end ? i : end - 1);
    }
    UNROLLED
    for (int n = 0; n < kAtOnce; n++) {
      const Index i = first + n * step;
      if (i < end) use(i, values[n]);
    }
  }
}

// The sum of `value` over all threads of the block. All threads call it.
inline float sum_over_block(float value) {
  SHARED float sums[kMaxWarps];
  for (int distance = kWarp / 2; distance; distance /= 2) value += shuffle_xor(value, distance);
  if (num_warps() == 1) return value;
  wait_for_block();  // the sums of an earlier call may still be read
  if (lane() == 0) sums[warp()] = value;
  wait_for_block();
  float sum = lane() < num_warps() ? sums[lane()] : 0.f;
  for (int distance = kWarp / 2; distance; distance /= 2) sum += shuffle_xor(sum, distance);
  return sum;
}

}  // namespace device
