#pragma clang attribute pop
#undef SIMD
