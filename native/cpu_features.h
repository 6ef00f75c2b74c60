// What instructions this processor has, and its system keeps the registers of.
#pragma once

namespace processor {

// What the kernels need, F16C included.
bool has_avx2_and_fma();
bool has_avx512();
// What their wide form needs: foundation, BW, DQ, VL and VNNI.
bool has_avx512_and_vnni();
// For products of bytes: AVX-VNNI or AVX512-VNNI.
bool has_vnni();

}  // namespace processor
