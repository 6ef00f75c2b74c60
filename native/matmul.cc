#include "matmul.h"

#include <string.h>

#include "processor.h"

namespace matmul {
namespace {

constexpr int64_t kBlock = 384;     // inputs whose panel stays in the first cache
constexpr int64_t kRowBlock = 96;   // rows of which that many inputs stay in the second
constexpr int64_t kTile = 6;        // rows: with 16 outputs, twelve registers of sums

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Where a tile's sums go, and what is done with them.
struct Output {
  float* y;
  int64_t stride;
  const float* bias;
  const float* rest;
  int64_t rest_stride;
  Activation activation;
  bool is_first, is_last;  // of the blocks of inputs
};

template <int R>
AVX2_FMA void multiply_tile(const float* x, int64_t stride, const float* panel, int64_t size,
                            const Output& out) {
  __m256 sums[R][2];
  const float* rows[R];
  for (int r = 0; r < R; r++) {
    sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    rows[r] = x + r * stride;
    __builtin_prefetch(out.y + r * out.stride, 1);
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
  int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    add(i);
    add(i + 1);
    add(i + 2);
    add(i + 3);
  }
  for (; i < size; i++) add(i);
  for (int r = 0; r < R; r++) {
    float* y = out.y + r * out.stride;
    for (int half = 0; half < 2; half++) {
      const int64_t column = 8 * half;
      __m256 sum = sums[r][half];
      if (!out.is_first) sum = _mm256_add_ps(_mm256_loadu_ps(y + column), sum);
      if (out.is_last) {
        sum = finish(sum, out.activation, out.bias ? out.bias + column : nullptr,
                     out.rest ? out.rest + r * out.rest_stride + column : nullptr);
      }
      _mm256_storeu_ps(y + column, sum);
    }
  }
}

// Rows of a tile when that many are left: not one or two alone, if there are more.
int64_t tile_of(int64_t num_rows) {
  if (num_rows == kTile + 1 || num_rows == kTile + 2) return 4;
  return smaller(kTile, num_rows);
}

void multiply_panel(const float* x, int64_t stride, int64_t num_rows, const float* panel,
                    int64_t size, Output out) {
  while (num_rows) {
    const int64_t count = tile_of(num_rows);
    switch (count) {
      case 6: multiply_tile<6>(x, stride, panel, size, out); break;
      case 5: multiply_tile<5>(x, stride, panel, size, out); break;
      case 4: multiply_tile<4>(x, stride, panel, size, out); break;
      case 3: multiply_tile<3>(x, stride, panel, size, out); break;
      case 2: multiply_tile<2>(x, stride, panel, size, out); break;
      default: multiply_tile<1>(x, stride, panel, size, out); break;
    }
    num_rows -= count;
    x += count * stride;
    out.y += count * out.stride;
    if (out.rest) out.rest += count * out.rest_stride;
  }
}

// The last panel, whose outputs do not all exist: by way of one that has them all.
class Edge {
 public:
  Edge(const Epilogue& epilogue, int64_t column, int64_t width, int64_t stride)
      : epilogue_(epilogue), column_(column), width_(width), stride_(stride) {
    if (epilogue.bias) memcpy(bias_, epilogue.bias + column, width * sizeof(float));
  }

  Output output(int64_t first_row, int64_t num_rows, bool is_first, bool is_last) {
    if (is_last && epilogue_.rest) {
      for (int64_t row = 0; row < num_rows; row++) {
        memcpy(rest_ + row * kPanel, epilogue_.rest + (first_row + row) * stride_ + column_,
               width_ * sizeof(float));
      }
    }
    return {y_, kPanel, epilogue_.bias ? bias_ : nullptr, epilogue_.rest ? rest_ : nullptr,
            kPanel, epilogue_.activation, is_first, is_last};
  }

  void write(float* y, int64_t first_row, int64_t num_rows) const {
    for (int64_t row = 0; row < num_rows; row++) {
      memcpy(y + (first_row + row) * stride_ + column_, y_ + row * kPanel,
             width_ * sizeof(float));
    }
  }

 private:
  const Epilogue& epilogue_;
  int64_t column_, width_, stride_;
  float bias_[kPanel] = {}, rest_[kRowBlock * kPanel] = {}, y_[kRowBlock * kPanel];
};

}  // namespace

bool runs_here() { return processor::has_avx2() && processor::has_fma(); }

void multiply(const float* x, int64_t num_rows, const Matrix& matrix, const Epilogue& epilogue,
              int64_t first, int64_t last, float* y) {
  const int64_t inputs = matrix.num_inputs, stride = matrix.num_outputs;
  const int64_t num_whole = stride / kPanel;
  for (int64_t row = 0; row < num_rows; row += kRowBlock) {
    const int64_t count = smaller(kRowBlock, num_rows - row);
    for (int64_t begin = 0; begin < inputs; begin += kBlock) {
      const int64_t size = smaller(kBlock, inputs - begin);
      const bool is_first = begin == 0, is_last = begin + size == inputs;
      for (int64_t panel = first; panel < smaller(last, num_whole); panel++) {
        const int64_t column = panel * kPanel;
        const Output out = {y + row * stride + column,
                            stride,
                            epilogue.bias ? epilogue.bias + column : nullptr,
                            epilogue.rest ? epilogue.rest + row * stride + column : nullptr,
                            stride,
                            epilogue.activation,
                            is_first,
                            is_last};
        multiply_panel(x + row * inputs + begin, inputs, count,
                       matrix.weights + (panel * inputs + begin) * kPanel, size, out);
      }
    }
    if (last <= num_whole) continue;
    const int64_t column = num_whole * kPanel;
    Edge edge(epilogue, column, stride - column, stride);
    for (int64_t begin = 0; begin < inputs; begin += kBlock) {
      const int64_t size = smaller(kBlock, inputs - begin);
      const Output out = edge.output(row, count, begin == 0, begin + size == inputs);
      multiply_panel(x + row * inputs + begin, inputs, count,
                     matrix.weights + (num_whole * inputs + begin) * kPanel, size, out);
    }
    edge.write(y, row, count);
  }
}

}  // namespace matmul
