// The intrinsics of device code on a CPU, so that tests run it on machines without a GPU.
#pragma once

#define KERNEL static
// In a section of its own, which emulator.cc overwrites before each block: on a device, shared memory
// starts with any contents.
#define SHARED __attribute__((section("shared_memory"))) static

namespace emulator {

// Of the running thread.
int thread();
int num_threads();
int block();

// Waits for all threads of the block that have not ended.
void wait_for_block();

// Waits for all lanes of the warp. Returns the bits that another lane gave.
unsigned from_lane(unsigned bits, int distance);

}  // namespace emulator

namespace device {

inline int thread() { return emulator::thread(); }
inline int num_threads() { return emulator::num_threads(); }
inline int block() { return emulator::block(); }
inline void wait_for_block() { emulator::wait_for_block(); }

template <typename T>
inline T from_lane(T value, int distance) {
  return __builtin_bit_cast(T, emulator::from_lane(__builtin_bit_cast(unsigned, value), distance));
}

inline float exp2(float x) { return __builtin_exp2f(x); }
inline float rsqrt(float x) { return 1.f / __builtin_sqrtf(x); }

}  // namespace device
