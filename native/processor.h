// What instructions this processor has, and its system keeps the registers of.
#pragma once

namespace processor {

// What the kernels need, F16C included.
bool has_avx2_and_fma();
bool has_avx512();
// For products of bytes: AVX-VNNI or AVX512-VNNI.
bool has_vnni();

}  // namespace processor
