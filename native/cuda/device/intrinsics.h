// What device code needs of CUDA: the place of a thread, barriers, exchanges within a warp and fast
// functions. Compiled by Clang for PTX; no CUDA headers are needed.
//
// Source: PTX ISA, "Special Registers", "shfl.sync", "ex2", "rsqrt";
// https://docs.nvidia.com/cuda/parallel-thread-execution.
#pragma once

#define KERNEL extern "C" __attribute__((nvptx_kernel))
#define SHARED __attribute__((address_space(3))) static

namespace device {

inline int thread() { return __nvvm_read_ptx_sreg_tid_x(); }
inline int num_threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
inline int block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
inline void wait_for_block() { __syncthreads(); }

// The value of the lane whose number differs in the bits of `distance`. All lanes call it.
inline float from_lane(float value, int distance) {
  return __nvvm_shfl_sync_bfly_f32(~0u, value, distance, kWarp - 1);
}
inline int from_lane(int value, int distance) {
  return __nvvm_shfl_sync_bfly_i32(~0u, value, distance, kWarp - 1);
}

inline float exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
inline float rsqrt(float x) { return __nvvm_rsqrt_approx_ftz_f(x); }

}  // namespace device
