#include "../matmul.h"

#include "../integers.h"
#include "panel_epilogue.h"
#include "prefetch.h"
#include "row_pointers.h"
#include "weight_format.h"

#include "begin_target.h"

namespace matmul::SIMD {
namespace {

using namespace ::SIMD;
using PanelEpilogue = ::SIMD::PanelEpilogue<Factors::kExact>;

// The micro-tile is kMr rows by kNrPanels panels: 12 x 32 outputs in 24 of 32 registers, or 6 x 16
// in 12 of 16.
constexpr int kMr = SIMD_BITS == 512 ? 12 : 6;
constexpr int kNrPanels = SIMD_BITS == 512 ? 2 : 1;
constexpr int64_t kMc = 96;  // rows that use the same panels before the next rows do
// Inputs per iteration of the inner loop, in which panels hold kUnroll * kNrPanels cache lines.
constexpr int kUnroll = 4;

// One panel or adjacent panels, as fp32 [panels][num_inputs][16].
class Panels {
 public:
  // Panels that are stored as fp32.
  Panels(const float* floats, int64_t num_inputs) : floats_(floats), num_inputs_(num_inputs) {}
  // One compressed panel, decompressed block by block into `scratch` [kc][16].
  Panels(const PackedMatrix& matrix, int64_t index, float* scratch)
      : data_(matrix.panel(index)), format_(matrix.format), scratch_(scratch) {}

  // Inputs begin .. end - 1, at most kc, of the first panel: [end - begin][16].
  const float* block(int64_t begin, int64_t end) const {
    if (floats_) return floats_ + begin * kPanelWidth;
    weight_format::SIMD::decompress(format_, data_, begin, end, scratch_);
    return scratch_;
  }
  // Floats from one panel to the next.
  int64_t stride() const { return num_inputs_ * kPanelWidth; }
  // The panel after the first `count`, for prefetching only: it may be past the end, and is invalid
  // for a compressed panel.
  const float* after(int64_t count) const { return floats_ + count * stride(); }

 private:
  const float* floats_ = nullptr;
  int64_t num_inputs_ = 0;
  const uint8_t* data_ = nullptr;
  WeightFormat format_ = WeightFormat::kFloat32;
  float* scratch_ = nullptr;
};

// The micro-kernel: R adjacent rows times P panels. Whether to prefetch is a template parameter, as
// the steps of a prefetcher without lines take time, too.
template <int R, int P, bool kPrefetches>
void multiply_micro_tile(const float* x, const Panels& panels, int64_t num_inputs,
                         const PanelEpilogue* epilogues, PanelPrefetcher prefetcher) {
  constexpr int kVectors = P * kPanelVectors;
  Floats totals[R][kVectors], sums[R][kVectors];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int v = 0; v < kVectors; v++) totals[r][v] = 0.0f;
#pragma unroll
    for (int p = 0; p < P; p++) epilogues[p].prefetch(r);
  }
  RowPointers<R> rows(x, num_inputs * sizeof(float));
  const float* w[P];  // of the current kc block
  const auto multiply_add = [&](int input) __attribute__((always_inline)) {
    Floats weights[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
      weights[v] = load(w[v / kPanelVectors] + input * kPanelWidth + v % kPanelVectors * kLanes);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      const Floats value = rows.template at<float>(r, input * sizeof(float));
#pragma unroll
      for (int v = 0; v < kVectors; v++) sums[r][v] = fma(value, weights[v], sums[r][v]);
    }
  };
  const auto advance = [&](int count) __attribute__((always_inline)) {
    rows.advance(count * sizeof(float));
#pragma unroll
    for (int p = 0; p < P; p++) w[p] += count * kPanelWidth;
  };
  for (int64_t begin = 0; begin < num_inputs; begin += kKc) {
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int v = 0; v < kVectors; v++) sums[r][v] = 0.0f;
    }
    const int64_t end = min(num_inputs, begin + kKc);
    w[0] = panels.block(begin, end);
#pragma unroll
    for (int p = 1; p < P; p++) w[p] = w[p - 1] + panels.stride();
    int64_t i = begin;
    for (; i + kUnroll <= end; i += kUnroll) {
      if constexpr (kPrefetches) prefetcher.step();
#pragma unroll
      for (int input = 0; input < kUnroll; input++) multiply_add(input);
      advance(kUnroll);
    }
    for (; i < end; i++) {
      multiply_add(0);
      advance(1);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int v = 0; v < kVectors; v++) totals[r][v] += sums[r][v];
    }
  }
#pragma unroll
  for (int p = 0; p < P; p++) {
    epilogues[p].template apply<R>(totals[0] + p * kPanelVectors, kVectors);
  }
}

// Number of rows of the next micro-tile: adjacent ones, spread evenly over the tiles they need.
int64_t next_tile_rows(const Rows& rows) {
  const int64_t num_adjacent = rows.num_adjacent();
  return div_ceil(num_adjacent, div_ceil(num_adjacent, kMr));
}

// P panels times up to mc rows.
template <int P, bool kPrefetches>
void multiply_panels(const float* x, Rows rows, const Panels& panels, int64_t num_inputs,
                     PanelEpilogue* epilogues) {
  PanelPrefetcher prefetcher(panels.after(P), kUnroll * kNrPanels, div_ceil(rows.count, kMr));
  while (rows.count) {
    const int64_t count = next_tile_rows(rows);
    with_static_count<kMr>(count, [&](auto mr) {
      multiply_micro_tile<mr.kCount, P, kPrefetches>(x + rows[0] * num_inputs, panels, num_inputs,
                                                     epilogues, prefetcher);
    });
    prefetcher.next_tile(num_inputs / kUnroll);
    rows = rows.slice(count, rows.count - count);
    for (int p = 0; p < P; p++) epilogues[p].advance(count);
  }
}

// Up to mc rows times panels first .. last - 1, which are in fp32 at `floats`.
void multiply_fp32_panels(const float* x, const Rows& rows, const PackedMatrix& matrix,
                          const Epilogue& epilogue, int64_t first, int64_t last,
                          const float* floats, float* y) {
  const int64_t num_inputs = matrix.num_inputs;
  const auto panel_epilogue = [&](int64_t index) {
    return PanelEpilogue(epilogue, matrix.num_outputs, rows, index, y);
  };
  int64_t index = first;
  if constexpr (kNrPanels == 2) {
    for (; index + 2 <= last; index += 2) {
      PanelEpilogue epilogues[] = {panel_epilogue(index), panel_epilogue(index + 1)};
      multiply_panels<2, true>(x, rows, {floats, num_inputs}, num_inputs, epilogues);
      floats += 2 * num_inputs * kPanelWidth;
    }
  }
  for (; index < last; index++) {
    PanelEpilogue epilogues[] = {panel_epilogue(index)};
    // In pairs of panels, the last one has no next ones; decompressed panels are cached.
    if (kNrPanels == 1 && matrix.format == WeightFormat::kFloat32) {
      multiply_panels<1, true>(x, rows, {floats, num_inputs}, num_inputs, epilogues);
    } else {
      multiply_panels<1, false>(x, rows, {floats, num_inputs}, num_inputs, epilogues);
    }
    floats += num_inputs * kPanelWidth;
  }
}

}  // namespace

void multiply(const float* x, const Rows& rows, const PackedMatrix& matrix,
              const Epilogue& epilogue, int64_t first_panel, int64_t last_panel, float* scratch,
              float* y) {
  const int64_t num_inputs = matrix.num_inputs, panel_size = num_inputs * kPanelWidth;
  const bool is_compressed = matrix.format != WeightFormat::kFloat32;
  if (is_compressed && rows.count <= kMaxStreamedRows) {
    for (int64_t index = first_panel; index < last_panel; index++) {
      PanelEpilogue epilogues[] = {
          PanelEpilogue(epilogue, matrix.num_outputs, rows, index, y)};
      multiply_panels<1, false>(x, rows, {matrix, index, scratch}, num_inputs, epilogues);
    }
    return;
  }
  const int64_t nc = is_compressed ? nc_panels(matrix) : last_panel - first_panel;
  for (int64_t begin = first_panel; begin < last_panel; begin += nc) {
    const int64_t end = min(last_panel, begin + nc);
    for (int64_t index = begin; is_compressed && index < end; index++) {
      weight_format::SIMD::decompress(matrix.format, matrix.panel(index), 0, num_inputs,
                                scratch + (index - begin) * panel_size);
    }
    const float* floats =
        is_compressed ? scratch : reinterpret_cast<const float*>(matrix.panel(begin));
    for (int64_t row = 0; row < rows.count; row += kMc) {
      multiply_fp32_panels(x, rows.slice(row, min(kMc, rows.count - row)), matrix, epilogue, begin,
                           end, floats, y);
    }
  }
}

}  // namespace matmul::SIMD

#include "end_target.h"
