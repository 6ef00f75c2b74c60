#include "matmul.h"

#include "numbers.h"

namespace matmul {
namespace {

// Inputs whose products are summed before they join the rest. Blocks of weights fit into it.
constexpr int64_t kBlock = 384;
constexpr int64_t kRowBlock = 96;  // rows that a panel is read for
constexpr int64_t kTile = 6;       // rows: with 16 outputs, twelve registers of sums

// A panel's inputs as floats.
class Panel {
 public:
  // `scratch`: for the whole panel if it `is_kept`, else for a block.
  Panel(const Matrix& matrix, int64_t index, bool is_kept, float* scratch)
      : data_(matrix.panel(index)), form_(matrix.form), is_kept_(is_kept), scratch_(scratch) {}

  // Inputs begin .. end - 1, a block: [..][16]. Blocks are asked for in order.
  const float* block(int64_t begin, int64_t end) {
    if (form_ == weights::Form::kFloat) {
      return reinterpret_cast<const float*>(data_) + begin * kPanel;
    }
    float* const floats = is_kept_ ? scratch_ + begin * kPanel : scratch_;
    if (num_ready_ < end || !is_kept_) {
      weights::expand(form_, data_, begin, end, floats);
      num_ready_ = end;
    }
    return floats;
  }

 private:
  const uint8_t* data_;
  weights::Form form_;
  bool is_kept_;
  float* scratch_;
  int64_t num_ready_ = 0;
};

template <int R>
AVX2_FMA void multiply_tile(const float* x, const Rows& places, Panel& panel, int64_t size,
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

void multiply_panel(const float* x, Rows rows, Panel panel, int64_t size, Output out) {
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

int64_t scratch_size(const Matrix& matrix, int64_t num_rows) {
  if (matrix.form == weights::Form::kFloat) return 0;
  return kPanel * (num_rows > kTile ? matrix.num_inputs : smaller(kBlock, matrix.num_inputs));
}

void multiply(const float* x, const Rows& rows, const Matrix& matrix, const Epilogue& epilogue,
              int64_t first, int64_t last, float* scratch, float* y) {
  for (int64_t row = 0; row < rows.count; row += kRowBlock) {
    const Rows part = rows.part(row, smaller(kRowBlock, rows.count - row));
    for (int64_t index = first; index < last; index++) {
      multiply_panel(x, part, Panel(matrix, index, part.count > kTile, scratch), matrix.num_inputs,
                     Output(epilogue, matrix.num_outputs, part, index, y));
    }
  }
}

}  // namespace matmul
