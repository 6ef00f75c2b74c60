// The CUDA intrinsics of device code: thread indices, barriers, warp shuffles, mma, byte permutes,
// loads, asynchronous copies to shared memory, approximate functions and dependent launches. Clang
// compiles them to PTX; no CUDA headers are needed.
//
// Source: PTX ISA, "Special Registers", "shfl.sync", "vote.sync", "mma.sync", "prmt",
// "ld.global.nc", "cp.async", "ex2", "rcp", "rsqrt", "griddepcontrol";
// https://docs.nvidia.com/cuda/parallel-thread-execution.
#pragma once

#define KERNEL extern "C" __attribute__((nvptx_kernel))
#define SHARED __attribute__((address_space(3))) static

namespace device {

// Launch bounds of a kernel, whose first call this is: at most `Threads` threads per block, and
// registers for at least `Blocks` blocks per multiprocessor. scripts/build_kernels.py turns the
// comment in the PTX into directives.
template <int Threads, int Blocks>
inline void expect_threads() {
  asm volatile("// expect %0 threads, %1 blocks" ::"n"(Threads), "n"(Blocks));
}

inline int thread() { return __nvvm_read_ptx_sreg_tid_x(); }
inline int num_threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
inline int block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
inline void wait_for_block() { __syncthreads(); }

// The value of lane `lane() ^ distance`, as __shfl_xor_sync(). All lanes call it.
inline float shuffle_xor(float value, int distance) {
  return __nvvm_shfl_sync_bfly_f32(~0u, value, distance, kWarp - 1);
}
inline int shuffle_xor(int value, int distance) {
  return __nvvm_shfl_sync_bfly_i32(~0u, value, distance, kWarp - 1);
}

// The value of lane `lane`, as __shfl_sync(). All lanes call it.
inline float shuffle_idx(float value, int lane) {
  return __nvvm_shfl_sync_idx_f32(~0u, value, lane, kWarp - 1);
}

// Whether `value` is true in any lane. All lanes call it.
inline bool any_lane(bool value) { return __nvvm_vote_any_sync(~0u, value); }

// The low (or high) 16-bit halves of x and y in one word; that of x is in the low half.
inline uint low_halves(uint x, uint y) { return __nvvm_prmt(x, y, 0x5410); }
inline uint high_halves(uint x, uint y) { return __nvvm_prmt(x, y, 0x7632); }

inline uint select(uint x, uint y, bool is_second) {
  return __nvvm_prmt(x, y, is_second ? 0x7654 : 0x3210);
}

// c += a b^T in fp32, on tensor cores: a [16, 16], b [8, 16], c [16, 8]. All lanes call it. The
// fragments of lane 4 g + t (groupID g, threadID_in_group t), two 16-bit elements to a word:
//   a: columns 2t and 2t + 1 of rows g and g + 8, then columns 2t + 8 and 2t + 9 of both rows,
//   b: columns 2t and 2t + 1 of row g, then its columns 2t + 8 and 2t + 9,
//   c (fp32): columns 2t and 2t + 1 of row g, then of row g + 8.
template <bool IsBFloat>
inline void mma(float (&c)[4], const uint (&a)[4], const uint (&b)[2]) {
#define MMA(type)                                                                  \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                       \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                          \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (IsBFloat) {
    MMA("bf16");
  } else {
    MMA("f16");
  }
#undef MMA
}

// Loads 16 bytes of global memory; returns zeros, without an access, if `is_needed` is false. The
// compiler keeps the order of these loads and wait_for_previous().
inline Words load_if(bool is_needed, const void* from) {
  uint words[4] = {};
  asm volatile(
      "{\n.reg .pred needed;\nsetp.ne.b32 needed, %5, 0;\n"
      "@needed ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])
      : "l"((const __attribute__((address_space(1))) void*)from),
        "r"(static_cast<int>(is_needed)));
  return Words{words[0], words[1], words[2], words[3]};
}

#define LOAD_OR_LEAVE(instruction)                                                        \
  uint words[4];                                                                          \
  asm volatile(                                                                           \
      "{\n.reg .pred needed;\nsetp.ne.b32 needed, %5, 0;\n"                               \
      "@needed " instruction " {%0, %1, %2, %3}, [%4];\n}"                                \
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])                    \
      : "l"((const __attribute__((address_space(1))) void*)from),                         \
        "r"(static_cast<int>(is_needed)));                                                \
  return Words { words[0], words[1], words[2], words[3] }

// The same, but the result is undefined if `is_needed` is false.
inline Words load_or_leave(bool is_needed, const void* from) {
  LOAD_OR_LEAVE("ld.global.v4.u32");
}
// For memory that no kernel writes and one thread reads once: it bypasses the L1 cache.
inline Words load_constant_if(bool is_needed, const void* from) {
  LOAD_OR_LEAVE("ld.global.nc.L1::no_allocate.L2::128B.v4.u32");
}
#undef LOAD_OR_LEAVE

// Loads that the compiler does not reorder: a float, and a byte if it is needed, else 0.
inline float load(const float* from) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];"
               : "=f"(value)
               : "l"((const __attribute__((address_space(1))) void*)from));
  return value;
}
inline uint load_byte_if(bool is_needed, const unsigned char* from) {
  uint value = 0;
  asm volatile(
      "{\n.reg .pred needed;\nsetp.ne.b32 needed, %2, 0;\n@needed ld.global.u8 %0, [%1];\n}"
      : "+r"(value)
      : "l"((const __attribute__((address_space(1))) void*)from),
        "r"(static_cast<int>(is_needed)));
  return value;
}

// Copies 16 bytes to shared memory asynchronously; writes zeros if `is_needed` is false.
//   end_copies(): commits the thread's copies as a group.
//   wait_for_earlier_copies(): waits for all groups of the thread but the last.
inline void start_copy(void* to, const void* from, bool is_needed) {
  const auto shared = (__attribute__((address_space(3))) void*)to;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint>(reinterpret_cast<unsigned long>(shared))),
               "l"((const __attribute__((address_space(1))) void*)from), "r"(is_needed ? 16 : 0)
               : "memory");
}
inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
inline void wait_for_earlier_copies() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// A kernel may start before the previous one on its stream has ended (native/cuda/driver.h).
//   wait_for_previous(): waits until the previous kernel has ended and its results are visible.
//   let_next_start(): lets the next kernel start as soon as all blocks have called it.
inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// The bits of the nearest bfloat16, ties to even.
inline uint16 nearest_bfloat(float x) {
  return __builtin_bit_cast(uint16, __nvvm_f2bf16_rn(x));
}
// Two 16-bit floats in a word, each rounded to nearest.
inline uint nearest_halves(float low, float high) {
  return __builtin_bit_cast(uint, __nvvm_ff2f16x2_rn(high, low));
}
inline uint nearest_bfloats(float low, float high) {
  return __builtin_bit_cast(uint, __nvvm_ff2bf16x2_rn(high, low));
}
inline float exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
inline float reciprocal(float x) { return __nvvm_rcp_approx_ftz_f(x); }
inline float rsqrt(float x) { return __nvvm_rsqrt_approx_ftz_f(x); }

}  // namespace device
