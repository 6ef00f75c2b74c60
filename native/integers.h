// Integer helpers for index arithmetic.
#pragma once

#include <stdint.h>

inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t div_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t x, int64_t multiple) { return div_ceil(x, multiple) * multiple; }
