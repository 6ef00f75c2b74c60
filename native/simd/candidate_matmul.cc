#include "../candidate_matmul.h"

#include <math.h>

#include "../integers.h"
#include "reduce_16.h"
#include "vectors.h"

#include "begin_target.h"

namespace candidate_matmul::SIMD {
namespace {

using namespace ::SIMD;

constexpr int64_t kTileBytes = 1 << 20;  // columns that stay cached while all rows read them
constexpr int64_t kMaxRows = 64;         // rows per pass over a tile

#if SIMD_BITS == 512

// The dot products of one row with kLanes columns, whose zero_point_sums are subtracted.
INLINE Ints multiply_columns(const uint8_t* x, const int8_t* const* columns, int64_t stride,
                             Ints zero_point_sums) {
  __m512i sums[kLanes];
#pragma unroll
  for (int c = 0; c < kLanes; c++) sums[c] = _mm512_setzero_si512();
  for (int64_t i = 0; i < stride; i += kBlock) {
    const __m512i values = _mm512_loadu_si512(x + i);
#pragma unroll
    for (int c = 0; c < kLanes; c++) {
      sums[c] = _mm512_dpbusd_epi32(sums[c], values, _mm512_loadu_si512(columns[c] + i));
    }
  }
  Ints partial[kLanes];
#pragma unroll
  for (int c = 0; c < kLanes; c++) partial[c] = reinterpret_cast<Ints>(sums[c]);
  return sum_16(partial) - zero_point_sums;
}

#elif defined(__aarch64__)

// As above. SDOT multiplies signed bytes: with the zero point subtracted, no sums are left to
// subtract.
INLINE Ints multiply_columns(const uint8_t* x, const int8_t* const* columns, int64_t stride, Ints) {
  Ints sums[kLanes] = {};
  for (int64_t i = 0; i < stride; i += 32) {
    const Ints values = without_zero_points(load<Ints>(x + i));
#pragma unroll
    for (int c = 0; c < kLanes; c++) {
      sums[c] = add_dot_products(sums[c], values, load<Ints>(columns[c] + i));
    }
  }
  Ints totals;
#pragma unroll
  for (int c = 0; c < kLanes; c++) totals[c] = reduce_sum(sums[c]);
  return totals;
}

#else

// Lane i: the sum of a[i], for i < 8.
INLINE Ints transposed_sum(const __m256i* a) {
  __m256i fours[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    fours[i] = _mm256_hadd_epi32(_mm256_hadd_epi32(a[4 * i], a[4 * i + 1]),
                                 _mm256_hadd_epi32(a[4 * i + 2], a[4 * i + 3]));
  }
  return reinterpret_cast<Ints>(
      _mm256_add_epi32(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                       _mm256_permute2x128_si256(fours[0], fours[1], 0x31)));
}

// As above. Adding products of inputs 2i and 2i + 1 in 16 bits does not overflow: see PackedMatrix.
INLINE Ints multiply_columns(const uint8_t* x, const int8_t* const* columns, int64_t stride,
                             Ints zero_point_sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sums[kLanes];
#pragma unroll
  for (int c = 0; c < kLanes; c++) sums[c] = _mm256_setzero_si256();
  for (int64_t i = 0; i < stride; i += 32) {
    const __m256i values = load<__m256i>(x + i);
#pragma unroll
    for (int c = 0; c < kLanes; c++) {
      const __m256i products = _mm256_maddubs_epi16(values, load<__m256i>(columns[c] + i));
      sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(products, ones));
    }
  }
  return transposed_sum(sums) - zero_point_sums;
}

#endif

// Computes `count` candidates, at most kLanes, of one row.
INLINE void multiply_candidates(const uint8_t* x, float max_abs, const int32_t* ids, int64_t count,
                                const Matrix& matrix, float* y) {
  const int8_t* columns[kLanes];
  Ints zero_point_sums;
  Floats scales, bias;
#pragma unroll
  for (int64_t c = 0; c < kLanes; c++) {
    const int64_t id = ids[c < count ? c : 0];
    columns[c] = matrix.columns + id * matrix.stride;
    zero_point_sums[c] = matrix.zero_point_sums[id];
    scales[c] = matrix.scales[id];
    bias[c] = matrix.bias ? matrix.bias[id] : -0.0f;
  }
  const Ints sums = multiply_columns(x, columns, matrix.stride, zero_point_sums);
  // The operations and order of dequantize_and_apply(), for the same rounding.
  const Floats values = __builtin_convertvector(sums, Floats) * scales * max_abs + bias;
  if (count == kLanes) {
    store(y, values);
  } else {
    store_n(y, values, count);
  }
}

// Prefetches the columns of candidates.
INLINE void prefetch_columns(const int32_t* ids, int64_t count, const Matrix& matrix) {
  for (int64_t c = 0; c < count; c++) {
    const int8_t* const column = matrix.columns + ids[c] * matrix.stride;
    for (int64_t i = 0; i < matrix.stride; i += kBlock) __builtin_prefetch(column + i);
  }
}

// Number of candidates among ids [width].
int64_t num_candidates(const int32_t* ids, int64_t width) {
  while (width && ids[width - 1] < 0) width--;
  return width;
}

// Computes rows first .. first + count - 1, at most kMaxRows. All rows use one tile of columns
// before the next one: candidates are ascending, and rows share many.
void multiply_rows(const Rows& rows, int64_t first, int64_t count, const Matrix& matrix, float* y) {
  int64_t position[kMaxRows], size[kMaxRows], num_left = 0;
  for (int64_t r = 0; r < count; r++) {
    const int64_t row = (first + r) * rows.width;
    position[r] = 0;
    size[r] = num_candidates(rows.ids + row, rows.width);
    num_left += size[r];
    for (int64_t i = size[r]; i < rows.width; i++) y[row + i] = -INFINITY;
  }
  const int64_t tile = max(kLanes, kTileBytes / matrix.stride);
  for (int64_t end = tile; num_left; end += tile) {
    for (int64_t r = 0; r < count; r++) {
      const int64_t row = (first + r) * rows.width;
      const int32_t* const ids = rows.ids + row;
      const uint8_t* const x = rows.bytes + (first + r) * rows.row_bytes;
      int64_t at = position[r];
      while (at < size[r]) {
        const int64_t group = min(kLanes, size[r] - at);
        if (ids[at + group - 1] >= end) break;
        const int64_t next = at + group;
        prefetch_columns(ids + next, min(kLanes, size[r] - next), matrix);
        multiply_candidates(x, rows.max_abs[first + r], ids + at, group, matrix, y + row + at);
        at += group;
      }
      num_left -= at - position[r];
      position[r] = at;
    }
  }
}

}  // namespace

void multiply(const Rows& rows, const Matrix& matrix, float* y) {
  for (int64_t first = 0; first < rows.count; first += kMaxRows) {
    multiply_rows(rows, first, min(kMaxRows, rows.count - first), matrix, y);
  }
}

}  // namespace candidate_matmul::SIMD

#include "end_target.h"
