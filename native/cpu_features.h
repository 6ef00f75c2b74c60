// CPU features that select the kernels. A feature counts only if the operating system saves its
// registers at a context switch.
#pragma once

namespace cpu_features {

// AArch64: SDOT, required by all kernels.
bool has_dot_products();

// x86-64. AVX2, FMA and F16C: required by all kernels.
bool has_avx2_and_fma();
// AVX512F.
bool has_avx512();
// AVX512F, BW, DQ, VL and VNNI: what the 512-bit kernels need.
bool has_avx512_and_vnni();
// AVX-VNNI or AVX512-VNNI: int8 dot products in ONNX Runtime's own kernels.
bool has_vnni();
// AVX512_BF16; false on AArch64.
bool has_avx512_bf16();

// AMX-TILE and AMX-INT8, with the operating system's permission.
bool has_amx_int8();

}  // namespace cpu_features
