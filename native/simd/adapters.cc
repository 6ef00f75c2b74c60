#include "../adapter_products.h"

#include "../integers.h"
#include "attention_lane_tiles.h"
#include "vectors.h"

#include "begin_target.h"

namespace adapters::SIMD {
namespace {

using namespace ::SIMD;

constexpr int kPanelVectors = kPanelWidth / kLanes;
// The micro-tile is up to kMr rows by kNrPanels panels, or a single row by kMaxPanels: enough
// multiply-adds to hide their latency.
constexpr int kMr = SIMD_BITS == 512 ? 4 : 2;
constexpr int kNrPanels = SIMD_BITS == 512 ? 4 : 2, kMaxPanels = 2 * kNrPanels;

// A cache line. Panels are too short for the CPU to prefetch the next ones by itself.
constexpr int64_t kLineBytes = 64;

struct LoadFloat32 {
  static constexpr int64_t kBytes = 4;
  INLINE static Floats at(const uint8_t* from) { return load(reinterpret_cast<const float*>(from)); }
};
struct LoadFloat16 {
  static constexpr int64_t kBytes = 2;
  INLINE static Floats at(const uint8_t* from) { return load_float16(reinterpret_cast<const uint16_t*>(from)); }
};
struct LoadBFloat16 {
  static constexpr int64_t kBytes = 2;
  INLINE static Floats at(const uint8_t* from) { return load_bfloat16(reinterpret_cast<const uint16_t*>(from)); }
};

// Adds a vector of the sums of a panel to `y`, where the panel begins.
INLINE void add_vector(float* y, int vector, Floats sums, Placement placement) {
  if (placement == Placement::kPanels) {
    float* const to = y + vector * kLanes;
    return store(to, load(to) + sums);
  }
  y += placement == Placement::kGated ? kPanelWidth / 2 : 0;
#if SIMD_BITS == 512
  store(y, load<Floats8>(y) + sums.lo);
  store(y + kPanelWidth, load<Floats8>(y + kPanelWidth) + sums.hi);
#else
  float* const to = y + vector * kPanelWidth;
  store(to, load(to) + sums);
#endif
}

// The micro-kernel: R rows of x and y times P adjacent panels, in the order of simd/matmul.cc.
template <int R, int P, typename Load>
void multiply_micro_tile(const float* const* x, const uint8_t* panels, int64_t num_inputs,
                         float* const* y, Placement placement) {
  const int64_t stride = num_inputs * kPanelWidth * Load::kBytes;
  const int64_t y_width = placement == Placement::kPanels ? kPanelWidth : 2 * kPanelWidth;
  for (int64_t begin = 0; begin < num_inputs; begin += matmul::kKc) {
    Floats sums[R][P][kPanelVectors];
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int p = 0; p < P; p++) {
#pragma unroll
        for (int v = 0; v < kPanelVectors; v++) sums[r][p][v] = 0.0f;
      }
    }
    const int64_t end = min(num_inputs, begin + matmul::kKc);
    for (int64_t i = begin; i < end; i++) {
      const uint8_t* const from = panels + i * kPanelWidth * Load::kBytes;
      if (i * kPanelWidth * Load::kBytes % kLineBytes == 0) {
#pragma unroll
        for (int p = 0; p < P; p++) __builtin_prefetch(from + (p + P) * stride);
      }
      Floats weights[P][kPanelVectors];
#pragma unroll
      for (int p = 0; p < P; p++) {
#pragma unroll
        for (int v = 0; v < kPanelVectors; v++) {
          weights[p][v] = Load::at(from + p * stride + v * kLanes * Load::kBytes);
        }
      }
#pragma unroll
      for (int r = 0; r < R; r++) {
        const Floats value = x[r][i];
#pragma unroll
        for (int p = 0; p < P; p++) {
#pragma unroll
          for (int v = 0; v < kPanelVectors; v++) {
            sums[r][p][v] = fma(value, weights[p][v], sums[r][p][v]);
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int p = 0; p < P; p++) {
#pragma unroll
        for (int v = 0; v < kPanelVectors; v++) {
          add_vector(y[r] + p * y_width, v, sums[r][p][v], placement);
        }
      }
    }
  }
}

template <int R, int P, typename Load>
void multiply_rows(const float* const* x, const matmul::PackedMatrix& matrix, int64_t first_panel,
                   int64_t last_panel, float* const* y, Placement placement) {
  const int64_t y_width = placement == Placement::kPanels ? kPanelWidth : 2 * kPanelWidth;
  for (int64_t panel = first_panel; panel < last_panel;) {
    const int64_t count = min(P, last_panel - panel);
    float* to[R];
    for (int r = 0; r < R; r++) to[r] = y[r] + (panel - first_panel) * y_width;
    with_static_count<P>(count, [&](auto panels) {
      multiply_micro_tile<R, panels.kCount, Load>(x, matrix.panel(panel), matrix.num_inputs, to,
                                                  placement);
    });
    panel += count;
  }
}

template <typename Load>
void multiply_all(const Strided& data, const Rows& rows, const matmul::PackedMatrix& matrix,
                  int64_t first_panel, int64_t last_panel, Placement placement) {
  for (int64_t row = 0; row < rows.count;) {
    const int64_t count = min(kMr, rows.count - row);
    const float* x[kMr];
    float* y[kMr];
    for (int64_t r = 0; r < count; r++) {
      x[r] = data.x + rows[row + r] * data.x_stride;
      y[r] = data.y + rows[row + r] * data.y_stride;
    }
    with_static_count<kMr>(count, [&](auto mr) {
      constexpr int R = mr.kCount;
      multiply_rows<R, R == 1 ? kMaxPanels : kNrPanels, Load>(x, matrix, first_panel, last_panel, y,
                                                              placement);
    });
    row += count;
  }
}

}  // namespace

void multiply(const Strided& data, const Rows& rows, const matmul::PackedMatrix& matrix,
              int64_t first_panel, int64_t last_panel, Placement placement) {
  switch (matrix.format) {
    case WeightFormat::kFloat16:
      return multiply_all<LoadFloat16>(data, rows, matrix, first_panel, last_panel, placement);
    case WeightFormat::kBFloat16:
      return multiply_all<LoadBFloat16>(data, rows, matrix, first_panel, last_panel, placement);
    default:
      return multiply_all<LoadFloat32>(data, rows, matrix, first_panel, last_panel, placement);
  }
}

}  // namespace adapters::SIMD

#include "end_target.h"
