// Sums of whole numbers that everybody needs.
#pragma once

#include <stdint.h>

inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t div_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
