// The intrinsics of device code on a CPU: tests without a GPU run the kernels with them.
#pragma once

#define KERNEL static
// A section of its own: emulator.cc overwrites it before each block, since shared memory on a
// device starts with arbitrary contents.
#define SHARED __attribute__((section("shared_memory"))) static

namespace emulator {

// Launch bounds and indices of the running thread.
void expect_threads(int count);
int thread();
int num_threads();
int block();

// Waits until all threads of the block have called it or ended.
void wait_for_block();

// Waits for all lanes of the warp. Returns the bits that lane `lane() ^ distance` passed.
unsigned shuffle_xor(unsigned bits, int distance);

// The same for the bits that lane `lane` passed.
unsigned shuffle_idx(unsigned bits, int lane);

// Waits for all lanes of the warp, and multiplies their fragments.
void mma(bool is_bfloat, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

// Copies at once or when the thread waits for the copy, at random.
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
inline T shuffle_xor(T value, int distance) {
  return __builtin_bit_cast(T, emulator::shuffle_xor(__builtin_bit_cast(unsigned, value), distance));
}

inline float shuffle_idx(float value, int lane) {
  return __builtin_bit_cast(float, emulator::shuffle_idx(__builtin_bit_cast(unsigned, value), lane));
}

inline bool any_lane(bool value) {
  int found = value;
  for (int distance = kWarp / 2; distance; distance /= 2) found |= shuffle_xor(found, distance);
  return found;
}

inline uint low_halves(uint x, uint y) { return (x & 0xffff) | y << 16; }
inline uint high_halves(uint x, uint y) { return x >> 16 | (y & 0xffff0000); }
inline uint select(uint x, uint y, bool is_second) { return is_second ? y : x; }

template <bool IsBFloat>
inline void mma(float (&c)[4], const uint (&a)[4], const uint (&b)[2]) {
  emulator::mma(IsBFloat, c, a, b);
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

// Kernels run one after another.
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
