// What is done with the sums of a product while they are in registers.
#pragma once

#include "../output.h"
#include "activations.h"

#include "begin.h"

namespace SIMD {

constexpr int kPanelVectors = kPanel / kLanes;

// One panel's part of some rows of y.
class PanelOutput {
 public:
  // Of y [rows, width]; `num_outputs` as the matrix has them.
  INLINE PanelOutput(const Epilogue& epilogue, int64_t num_outputs, const Rows& rows,
                     int64_t panel, float* y)
      : rows_(rows),
        activation_(epilogue.activation),
        stride_(epilogue.width_of(num_outputs)) {
    const int64_t panel_width = epilogue.is_gated() ? kPanel / 2 : kPanel;
    const int64_t column = panel * panel_width;
    y_ = y + column;
    rest_ = epilogue.rest ? epilogue.rest + column : nullptr;
    bias_ = epilogue.bias ? epilogue.bias + panel * kPanel : nullptr;
    width_ = stride_ - column < panel_width ? stride_ - column : panel_width;
  }

  INLINE void skip(int64_t num_rows) { rows_.first += num_rows; }
  INLINE void fetch(int64_t row) const { __builtin_prefetch(y_ + rows_[row] * stride_, 1); }

  // sums [num_rows][stride], in vectors. Not unrolled: it is long.
  INLINE void finish_all(int64_t num_rows, Floats* sums, int64_t stride) const {
#pragma clang loop unroll(disable)
    for (int64_t row = 0; row < num_rows; row++) finish(row, sums + row * stride);
  }

 private:
  // sums [kPanelVectors]
  INLINE void finish(int64_t row, Floats* sums) const {
    for (int v = 0; bias_ && v < kPanelVectors; v++) sums[v] += load(bias_ + v * kLanes);
    if (activation_ == Activation::kSiluGate) {
      Eight halves[2];
      memcpy(halves, sums, sizeof halves);
      return put(row, 0, silu(halves[0]) * halves[1]);
    }
    for (int v = 0; v < kPanelVectors; v++) {
      if (activation_ == Activation::kGelu) sums[v] = gelu(sums[v]);
      if (activation_ == Activation::kRelu) sums[v] = relu(sums[v]);
      put(row, v * kLanes, sums[v]);
    }
  }

  template <typename V>
  INLINE void put(int64_t row, int64_t column, V value) const {
    constexpr int64_t kSize = sizeof(V) / sizeof(float);
    const int64_t at = rows_[row] * stride_ + column, count = width_ - column;
    if (count >= kSize) {
      if (rest_) value += load<V>(rest_ + at);
      store(y_ + at, value);
    } else if (count > 0) {
      if (rest_) value += load_some<V>(rest_ + at, count);
      store_some(y_ + at, value, count);
    }
  }

  Rows rows_;
  float* y_;
  const float *rest_, *bias_;
  Activation activation_;
  int64_t stride_, width_;
};

}  // namespace SIMD

#include "end.h"
