#include "matmul.h"

#include "numbers.h"
#include "processor.h"

namespace matmul {
namespace {

constexpr int64_t kBlock = 384;     // inputs whose panel stays in the first cache
constexpr int64_t kRowBlock = 96;   // rows of which that many inputs stay in the second
constexpr int64_t kTile = 6;        // rows: with 16 outputs, twelve registers of sums

template <int R>
AVX2_FMA void multiply_tile(const float* x, int64_t stride, const Rows& places,
                            const float* panel, int64_t size, bool is_first, bool is_last,
                            const Output& out) {
  __m256 sums[R][2];
  const float* rows[R];
  for (int r = 0; r < R; r++) {
    sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    rows[r] = x + places[r] * stride;
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
  // The sum of each block on its own, for its accuracy, as if they came one by one.
  __m256 totals[R][2];
  int64_t i = 0;
  while (true) {
    const int64_t end = smaller(size, i + kBlock);
    for (; i + 4 <= end; i += 4) {
      add(i);
      add(i + 1);
      add(i + 2);
      add(i + 3);
    }
    for (; i < end; i++) add(i);
    if (end > kBlock) {
      for (int r = 0; r < R; r++) {
        for (int half = 0; half < 2; half++) {
          sums[r][half] = _mm256_add_ps(totals[r][half], sums[r][half]);
        }
      }
    }
    if (end == size) break;
    for (int r = 0; r < R; r++) {
      for (int half = 0; half < 2; half++) {
        totals[r][half] = sums[r][half];
        sums[r][half] = _mm256_setzero_ps();
      }
    }
  }
  for (int r = 0; r < R; r++) {
    if (!is_first) out.add_to(r, sums[r]);
    if (is_last) {
      out.finish(r, sums[r]);
    } else {
      out.store(r, sums[r]);
    }
  }
}

// Rows of a tile when that many are left: not one or two alone, if there are more.
int64_t tile_of(int64_t num_rows) {
  if (num_rows == kTile + 1 || num_rows == kTile + 2) return 4;
  return smaller(kTile, num_rows);
}

void multiply_panel(const float* x, int64_t stride, Rows rows, const float* panel, int64_t size,
                    bool is_first, bool is_last, Output out) {
  const auto tile = [&](auto multiply_rows) {
    multiply_rows(x, stride, rows, panel, size, is_first, is_last, out);
  };
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

bool runs_here() { return processor::has_avx2() && processor::has_fma(); }

void multiply(const float* x, const Rows& rows, const Matrix& matrix, const Epilogue& epilogue,
              int64_t first, int64_t last, float* y) {
  const int64_t inputs = matrix.num_inputs;
  // Half of what a gate lets through is not kept between blocks: then there is one.
  const int64_t block = epilogue.is_gated() ? inputs : kBlock;
  for (int64_t row = 0; row < rows.count; row += kRowBlock) {
    const Rows part = rows.part(row, smaller(kRowBlock, rows.count - row));
    for (int64_t begin = 0; begin < inputs; begin += block) {
      const int64_t size = smaller(block, inputs - begin);
      for (int64_t panel = first; panel < last; panel++) {
        multiply_panel(x + begin, inputs, part, matrix.weights + (panel * inputs + begin) * kPanel,
                       size, begin == 0, begin + size == inputs,
                       Output(epilogue, matrix.num_outputs, part, panel, y));
      }
    }
  }
}

}  // namespace matmul
