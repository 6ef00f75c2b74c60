#include "matmul.h"

#include "numbers.h"

namespace matmul {
namespace {

constexpr int64_t kBlock = 384;    // inputs whose products are summed before they join the rest
constexpr int64_t kRowBlock = 96;  // rows that a panel is read for
constexpr int64_t kTile = 6;       // rows: with 16 outputs, twelve registers of sums

template <int R>
AVX2_FMA void multiply_tile(const float* x, const Rows& places, const float* panel, int64_t size,
                            const Output& out) {
  __m256 totals[R][2], sums[R][2];
  const float* rows[R];
  for (int r = 0; r < R; r++) {
    totals[r][0] = totals[r][1] = _mm256_setzero_ps();
    rows[r] = x + places[r] * size;
    out.fetch(r);
  }
  const auto add = [&](int64_t i) __attribute__((always_inline, target("avx2,fma"))) {
    const __m256 w0 = _mm256_loadu_ps(panel + i * kPanel);
    const __m256 w1 = _mm256_loadu_ps(panel + i * kPanel + 8);
    for (int r = 0; r < R; r++) {
      const __m256 value = _mm256_broadcast_ss(rows[r] + i);
      sums[r][0] = _mm256_fmadd_ps(value, w0, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(value, w1, sums[r][1]);
    }
  };
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    const int64_t end = smaller(size, begin + kBlock);
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) {
      add(i);
      add(i + 1);
      add(i + 2);
      add(i + 3);
    }
    for (; i < end; i++) add(i);
    for (int r = 0; r < R; r++) {
      for (int half = 0; half < 2; half++) {
        totals[r][half] = _mm256_add_ps(totals[r][half], sums[r][half]);
      }
    }
  }
  for (int r = 0; r < R; r++) out.finish(r, totals[r]);
}

// Rows of a tile when that many are left: not one or two alone, if there are more.
int64_t tile_of(int64_t num_rows) {
  if (num_rows == kTile + 1 || num_rows == kTile + 2) return 4;
  return smaller(kTile, num_rows);
}

void multiply_panel(const float* x, Rows rows, const float* panel, int64_t size, Output out) {
  const auto tile = [&](auto multiply_rows) { multiply_rows(x, rows, panel, size, out); };
  while (rows.count) {
    const int64_t count = tile_of(rows.count);
    switch (count) {
      case 6: tile(multiply_tile<6>); break;
      case 5: tile(multiply_tile<5>); break;
      case 4: tile(multiply_tile<4>); break;
      case 3: tile(multiply_tile<3>); break;
      case 2: tile(multiply_tile<2>); break;
      default: tile(multiply_tile<1>); break;
    }
    rows = rows.part(count, rows.count - count);
    out.skip(count);
  }
}

}  // namespace

void multiply(const float* x, const Rows& rows, const Matrix& matrix, const Epilogue& epilogue,
              int64_t first, int64_t last, float* y) {
  const int64_t inputs = matrix.num_inputs;
  for (int64_t row = 0; row < rows.count; row += kRowBlock) {
    const Rows part = rows.part(row, smaller(kRowBlock, rows.count - row));
    for (int64_t panel = first; panel < last; panel++) {
      multiply_panel(x, part, matrix.weights + panel * inputs * kPanel, inputs,
                     Output(epilogue, matrix.num_outputs, part, panel, y));
    }
  }
}

}  // namespace matmul
