// The intrinsics of device code on a CPU, so that tests run it on machines without a GPU.
#pragma once

#define KERNEL static
// In a section of its own, which emulator.cc overwrites before each block: on a device, shared
// memory starts with any contents.
#define SHARED __attribute__((section("shared_memory"))) static

namespace emulator {

// Of the running thread.
void expect_threads(int count);
int thread();
int num_threads();
int block();

// Waits for all threads of the block that have not ended.
void wait_for_block();

// Waits for all lanes of the warp. Returns the bits that another lane gave.
unsigned from_lane(unsigned bits, int distance);

// The same, from lane `lane`.
unsigned of_lane(unsigned bits, int lane);

// Waits for all lanes of the warp. Multiplies the matrices that they give parts of.
void multiply_add(bool is_bfloat, float (&sums)[4], const unsigned (&left)[4],
                  const unsigned (&right)[2]);

// Copies are made at once, or when the thread waits for them, at random.
void start_copy(void* to, const void* from, bool is_needed);
void end_copies();
void wait_for_earlier_copies();

}  // namespace emulator

namespace device {

template <int Threads, int Blocks>
inline void expect_threads() {
  emulator::expect_threads(Threads);
}

inline int thread() { return emulator::thread(); }
inline int num_threads() { return emulator::num_threads(); }
inline int block() { return emulator::block(); }
inline void wait_for_block() { emulator::wait_for_block(); }

template <typename T>
inline T from_lane(T value, int distance) {
  return __builtin_bit_cast(T, emulator::from_lane(__builtin_bit_cast(unsigned, value), distance));
}

inline float of_lane(float value, int lane) {
  return __builtin_bit_cast(float, emulator::of_lane(__builtin_bit_cast(unsigned, value), lane));
}

inline bool any_lane(bool value) {
  int found = value;
  for (int distance = kWarp / 2; distance; distance /= 2) found |= from_lane(found, distance);
  return found;
}

inline uint low_halves(uint x, uint y) { return (x & 0xffff) | y << 16; }
inline uint high_halves(uint x, uint y) { return x >> 16 | (y & 0xffff0000); }
inline uint one_of(uint x, uint y, bool is_second) { return is_second ? y : x; }

template <bool IsBFloat>
inline void multiply_add(float (&sums)[4], const uint (&left)[4], const uint (&right)[2]) {
  emulator::multiply_add(IsBFloat, sums, left, right);
}

inline Words load_if(bool is_needed, const void* from) {
  return is_needed ? *static_cast<const Words*>(from) : Words(0u);
}
inline Words load_or_leave(bool is_needed, const void* from) {
  return is_needed ? *static_cast<const Words*>(from) : Words(~0u);  // NaN
}
inline Words load_constant_if(bool is_needed, const void* from) {
  return load_or_leave(is_needed, from);
}

inline float load(const float* from) { return *from; }
inline uint load_byte_if(bool is_needed, const unsigned char* from) { return is_needed ? *from : 0; }

using emulator::end_copies;
using emulator::start_copy;
using emulator::wait_for_earlier_copies;

// Kernels run one after the other.
inline void wait_for_previous() {}
inline void let_next_start() {}

inline uint16 nearest_bfloat(float x) {
  const uint bits = __builtin_bit_cast(uint, x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16>(bits >> 16 | 0x40);
  return static_cast<uint16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline uint nearest_halves(float low, float high) {
  const auto bits = [](float x) {
    return static_cast<uint>(__builtin_bit_cast(uint16, static_cast<_Float16>(x)));
  };
  return bits(low) | bits(high) << 16;
}
inline uint nearest_bfloats(float low, float high) {
  return nearest_bfloat(low) | static_cast<uint>(nearest_bfloat(high)) << 16;
}
inline float exp2(float x) { return __builtin_exp2f(x); }
inline float reciprocal(float x) { return 1.f / x; }
inline float rsqrt(float x) { return 1.f / __builtin_sqrtf(x); }

}  // namespace device
