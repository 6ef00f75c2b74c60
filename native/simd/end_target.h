// Closes what begin_target.h opened.
#pragma clang attribute pop
#undef SIMD
