#include "matmul.h"

#include "numbers.h"

namespace matmul {
namespace {

// Inputs whose products are summed before they join the rest. Blocks of weights fit into it.
constexpr int64_t kBlock = 384;
constexpr int64_t kRowBlock = 96;  // rows that a panel is read for
constexpr int64_t kTile = 6;       // rows: with 16 outputs, twelve registers of sums

// A panel's inputs as floats, all of them or a block at a time.
class Panel {
 public:
  explicit Panel(const float* floats) : floats_(floats) {}
  // `scratch`: for a block.
  Panel(const Matrix& matrix, int64_t index, float* scratch)
      : data_(matrix.panel(index)), form_(matrix.form), scratch_(scratch) {}

  // Inputs begin .. end - 1, a block: [..][16].
  const float* block(int64_t begin, int64_t end) const {
    if (floats_) return floats_ + begin * kPanel;
    weights::expand(form_, data_, begin, end, scratch_);
    return scratch_;
  }

 private:
  const float* floats_ = nullptr;
  const uint8_t* data_ = nullptr;
  weights::Form form_ = weights::Form::kFloat;
  float* scratch_ = nullptr;
};

template <int R>
AVX2_FMA void multiply_tile(const float* x, const Rows& places, const Panel& panel, int64_t size,
                            const Output& out) {
  __m256 totals[R][2], sums[R][2];
  const float* rows[R];
  for (int r = 0; r < R; r++) {
    totals[r][0] = totals[r][1] = _mm256_setzero_ps();
    rows[r] = x + places[r] * size;
    out.fetch(r);
  }
  const float* w = nullptr;  // of a block
  const auto add = [&](int64_t i) __attribute__((always_inline, target("avx2,fma,f16c"))) {
    const __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
    w += kPanel;
    for (int r = 0; r < R; r++) {
      const __m256 value = _mm256_broadcast_ss(rows[r] + i);
      sums[r][0] = _mm256_fmadd_ps(value, w0, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(value, w1, sums[r][1]);
    }
  };
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    const int64_t end = smaller(size, begin + kBlock);
    w = panel.block(begin, end);
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

void multiply_panel(const float* x, Rows rows, const Panel& panel, int64_t size, Output out) {
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

// Panels that are expanded for all rows: they stay in a core's cache.
constexpr int64_t kExpandedFloats = 48 * 1024;

int64_t panels_at_once(const Matrix& matrix) {
  return larger(1, kExpandedFloats / larger(1, matrix.num_inputs * kPanel));
}

}  // namespace

int64_t scratch_size(const Matrix& matrix, int64_t num_rows, int64_t num_panels) {
  if (matrix.form == weights::Form::kFloat) return 0;
  if (num_rows <= kTile) return kPanel * smaller(kBlock, matrix.num_inputs);
  return kPanel * matrix.num_inputs * smaller(num_panels, panels_at_once(matrix));
}

void multiply(const float* x, const Rows& rows, const Matrix& matrix, const Epilogue& epilogue,
              int64_t first, int64_t last, float* scratch, float* y) {
  const bool is_float = matrix.form == weights::Form::kFloat;
  const bool is_expanded = !is_float && rows.count > kTile;
  const int64_t inputs = matrix.num_inputs, size = inputs * kPanel;
  const int64_t at_once = is_expanded ? panels_at_once(matrix) : last - first;
  for (int64_t begin = first; begin < last; begin += at_once) {
    const int64_t end = smaller(last, begin + at_once);
    for (int64_t index = begin; is_expanded && index < end; index++) {
      weights::expand(matrix.form, matrix.panel(index), 0, inputs, scratch + (index - begin) * size);
    }
    for (int64_t row = 0; row < rows.count; row += kRowBlock) {
      const Rows part = rows.part(row, smaller(kRowBlock, rows.count - row));
      for (int64_t index = begin; index < end; index++) {
        const Output out(epilogue, matrix.num_outputs, part, index, y);
        if (is_float) {
          multiply_panel(x, part, Panel(reinterpret_cast<const float*>(matrix.panel(index))), inputs,
                         out);
        } else if (is_expanded) {
          multiply_panel(x, part, Panel(scratch + (index - begin) * size), inputs, out);
        } else {
          multiply_panel(x, part, Panel(matrix, index, scratch), inputs, out);
        }
      }
    }
  }
}

}  // namespace matmul
