// Opens the code of one target. The build compiles every source of this folder once per register
// width: for x86-64, SIMD_BITS 256 (AVX2, FMA, F16C) and 512 (AVX-512 F, BW, DQ, VL, VNNI); for
// AArch64, 256 (NEON with SDOT, two registers of 128 bits for each vector). With 512 bits,
// tile_kernel_table and attention in bfloat16 may also use the intrinsics of AMX and AVX-512 BF16,
// which a CPU with AVX-512 may lack. PREFETCHW does nothing on a CPU that lacks it.
//
// Code between this header and end_target.h is in a namespace SIMD (avx2, avx512 or neon) and uses
// that target's instructions. Include system headers and headers shared by targets before this one:
// otherwise the linker could pick their AVX-512 copy for a CPU without AVX-512.
#if defined(__aarch64__) && SIMD_BITS == 256
#define SIMD neon
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#elif SIMD_BITS == 512
#define SIMD avx512
#pragma clang attribute push(                                                              \
    __attribute__((target("avx2,fma,f16c,prfchw,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni," \
                          "avx512bf16,amx-tile,amx-int8"))),                                                   \
    apply_to = function)
#elif SIMD_BITS == 256
#define SIMD avx2
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,prfchw"))), apply_to = function)
#else
#error "SIMD_BITS must be 256 or 512: see scripts/build_kernels.py"
#endif
