// The epilogue of a matrix product, applied to its sums before they are stored: bias, activation,
// residual. All matrix products share it; simd/panel_epilogue.h applies it while the sums are in
// registers.
//
// As a GEMM, y [M, N] = epilogue(x [M, K] W [K, N]): M is num_rows, K is num_inputs and N is
// num_outputs.
#pragma once

#include <stdint.h>

// Outputs in a packed panel of W. A micro-kernel's nr is one or two panels.
constexpr int64_t kPanelWidth = 16;

// kSiluGate (SwiGLU: Shazeer 2020): W has 2n outputs, and each panel holds eight of the first n,
// then the eight of the last n that they gate. server/runtime/kernels/epilogue.py packs them so and
// has the same numbers.
enum class Activation : int32_t { kNone = 0, kRelu = 1, kGelu = 2, kSiluGate = 3 };

// What is added to the sums of rows and panels before the bias, or null: for the row at a position in
// Rows, [panels][16] floats from data + (position - first_row) * stride on, of panels from first_panel
// on.
struct Changes {
  const float* data;
  int64_t first_row, first_panel, stride;
};

// y = activation(sum + changes + bias) + residual; with a gate, silu(first half) * second half + residual.
struct Epilogue {
  const float* bias;      // [panels][16], or null
  const float* residual;  // shaped as y, or null; may be y: read before y is written
  Activation activation;
  Changes changes;

  bool is_gated() const { return activation == Activation::kSiluGate; }
  // The width of y.
  int64_t width_of(int64_t num_outputs) const { return is_gated() ? num_outputs / 2 : num_outputs; }
};

// The rows of x and y to compute: `count` rows from `first` on.
struct Rows {
  const int32_t* indices;  // ascending; null: every row
  int64_t first, count;

  int64_t operator[](int64_t i) const { return indices ? indices[first + i] : first + i; }
  // Number of rows, counted from the first, that are adjacent in memory.
  int64_t num_adjacent() const {
    int64_t size = indices ? 1 : count;
    while (size < count && indices[first + size] == indices[first] + size) size++;
    return size;
  }
  Rows slice(int64_t begin, int64_t size) const { return {indices, first + begin, size}; }
};
