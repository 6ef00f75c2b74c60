// Every file of this folder is compiled once for each set of instructions. What is between this and
// end.h is in a namespace SIMD of its own, and made of those instructions; what others include, or
// the system's headers hold, is included before.
#if SIMD_BITS == 512
#define SIMD avx512
#pragma clang attribute push(                                                               \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), \
    apply_to = function)
#elif SIMD_BITS == 256
#define SIMD avx2
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#error "SIMD_BITS is 256 or 512: scripts/build_kernels.py"
#endif
