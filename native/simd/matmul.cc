#include "../matmul.h"

#include "../integers.h"
#include "panel_epilogue.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace matmul::SIMD {
namespace {

using namespace ::SIMD;

constexpr int64_t kRowBlock = 96;  // rows that panels are read for
// Of a tile. Sums fill twelve of 16 registers, or 24 of 32.
constexpr int kMostPanels = SIMD_BITS == 512 ? 2 : 1;
constexpr int kTile = SIMD_BITS == 512 ? 12 : 6;  // rows
// Inputs in a step of its loop. Two panels have eight lines of a cache for them; eight tiles, all
// the rows that panels are read for, fetch one each of the next two.
constexpr int kUnrolled = 4;

// Panels' inputs as floats, all of them or a block at a time.
class Panels {
 public:
  // Some that lie as floats one after the other.
  Panels(const float* floats, int64_t num_inputs) : floats_(floats), num_inputs_(num_inputs) {}
  // One. `scratch`: for a block.
  Panels(const Matrix& matrix, int64_t index, float* scratch)
      : data_(matrix.panel(index)), form_(matrix.form), scratch_(scratch) {}

  // Inputs begin .. end - 1, a block, of the first panel: [..][16].
  const float* block(int64_t begin, int64_t end) const {
    if (floats_) return floats_ + begin * kPanel;
    weights::expand(form_, data_, begin, end, scratch_);
    return scratch_;
  }
  int64_t stride() const { return num_inputs_ * kPanel; }
  // Where those behind `count` of them are; never read where they do not lie as floats.
  const float* next(int64_t count) const { return floats_ + count * stride(); }

 private:
  const float* floats_ = nullptr;
  int64_t num_inputs_ = 0;
  const uint8_t* data_ = nullptr;
  weights::Form form_ = weights::Form::kFloat;
  float* scratch_ = nullptr;
};

// R rows that are neighbours times P panels.
template <int R, int P>
void multiply_tile(const float* x, const Panels& panels, int64_t size, const PanelOutput* outputs,
                   Ahead ahead) {
  constexpr int kVectors = P * kPanelVectors;
  Floats totals[R][kVectors], sums[R][kVectors];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int v = 0; v < kVectors; v++) totals[r][v] = 0.0f;
#pragma unroll
    for (int p = 0; p < P; p++) outputs[p].fetch(r);
  }
  RowsAhead<R> rows(x, size * sizeof(float));
  const float* w[P];  // of a block
  const auto add = [&](int input) __attribute__((always_inline)) {
    Floats weights[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
      weights[v] = load(w[v / kPanelVectors] + input * kPanel + v % kPanelVectors * kLanes);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      const Floats value = rows.template at<float>(r, input * sizeof(float));
#pragma unroll
      for (int v = 0; v < kVectors; v++) sums[r][v] = fma(value, weights[v], sums[r][v]);
    }
  };
  const auto skip = [&](int num_inputs) __attribute__((always_inline)) {
    rows.skip(num_inputs * sizeof(float));
#pragma unroll
    for (int p = 0; p < P; p++) w[p] += num_inputs * kPanel;
  };
  for (int64_t begin = 0; begin < size; begin += kBlock) {
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int v = 0; v < kVectors; v++) sums[r][v] = 0.0f;
    }
    const int64_t end = min(size, begin + kBlock);
    w[0] = panels.block(begin, end);
#pragma unroll
    for (int p = 1; p < P; p++) w[p] = w[p - 1] + panels.stride();
    int64_t i = begin;
    for (; i + kUnrolled <= end; i += kUnrolled) {
      if constexpr (P == 2) ahead.fetch();
#pragma unroll
      for (int input = 0; input < kUnrolled; input++) add(input);
      skip(kUnrolled);
    }
    for (; i < end; i++) {
      add(0);
      skip(1);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int v = 0; v < kVectors; v++) totals[r][v] += sums[r][v];
    }
  }
#pragma unroll
  for (int p = 0; p < P; p++) {
    outputs[p].template finish<R>(totals[0] + p * kPanelVectors, kVectors);
  }
}

// Rows of the next tile: neighbours, as many as those of the others that follow it.
int64_t tile_of(const Rows& rows) {
  const int64_t run = rows.run();
  return div_ceil(run, div_ceil(run, kTile));
}

template <int P>
void multiply_panels(const float* x, Rows rows, const Panels& panels, int64_t size,
                     PanelOutput* outputs) {
  Ahead ahead(panels.next(P));
  while (rows.count) {
    const int64_t count = tile_of(rows);
    with_static_count<kTile>(count, [&](auto tile) {
      multiply_tile<tile.kCount, P>(x + rows[0] * size, panels, size, outputs, ahead);
    });
    ahead.skip(size / kUnrolled);
    rows = rows.part(count, rows.count - count);
    for (int p = 0; p < P; p++) outputs[p].skip(count);
  }
}

// Some rows times panels first .. last - 1, which lie as floats.
void multiply_floats(const float* x, const Rows& rows, const Matrix& matrix,
                     const Epilogue& epilogue, int64_t first, int64_t last, const float* floats,
                     float* y) {
  const int64_t size = matrix.num_inputs;
  const auto output = [&](int64_t index) {
    return PanelOutput(epilogue, matrix.num_outputs, rows, index, y);
  };
  int64_t index = first;
  if constexpr (kMostPanels == 2) {
    for (; index + 2 <= last; index += 2) {
      PanelOutput outputs[] = {output(index), output(index + 1)};
      multiply_panels<2>(x, rows, {floats, size}, size, outputs);
      floats += 2 * size * kPanel;
    }
  }
  for (; index < last; index++) {
    PanelOutput outputs[] = {output(index)};
    multiply_panels<1>(x, rows, {floats, size}, size, outputs);
    floats += size * kPanel;
  }
}

}  // namespace

void multiply(const float* x, const Rows& rows, const Matrix& matrix, const Epilogue& epilogue,
              int64_t first, int64_t last, float* scratch, float* y) {
  const int64_t inputs = matrix.num_inputs, size = inputs * kPanel;
  if (matrix.form != weights::Form::kFloat && rows.count <= kFewRows) {
    for (int64_t index = first; index < last; index++) {
      PanelOutput outputs[] = {PanelOutput(epilogue, matrix.num_outputs, rows, index, y)};
      multiply_panels<1>(x, rows, {matrix, index, scratch}, inputs, outputs);
    }
    return;
  }
  const bool is_expanded = matrix.form != weights::Form::kFloat;
  const int64_t at_once = is_expanded ? panels_at_once(matrix) : last - first;
  for (int64_t begin = first; begin < last; begin += at_once) {
    const int64_t end = min(last, begin + at_once);
    for (int64_t index = begin; is_expanded && index < end; index++) {
      weights::expand(matrix.form, matrix.panel(index), 0, inputs,
                      scratch + (index - begin) * size);
    }
    const float* floats =
        is_expanded ? scratch : reinterpret_cast<const float*>(matrix.panel(begin));
    for (int64_t row = 0; row < rows.count; row += kRowBlock) {
      multiply_floats(x, rows.part(row, min(kRowBlock, rows.count - row)), matrix, epilogue,
                      begin, end, floats, y);
    }
  }
}

}  // namespace matmul::SIMD

#include "end_target.h"
