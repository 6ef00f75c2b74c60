// What is done with the sums of a product while they are in registers.
#pragma once

#include "../epilogue.h"
#include "activations.h"

#include "begin_target.h"

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
  INLINE void fetch(int64_t row) const { __builtin_prefetch(y_ + place(row), 1); }

  // sums [R][stride], in vectors, of the next R rows. They are never put into memory where all that
  // follows is to add to them.
  template <int R>
  INLINE void finish(Floats* sums, int64_t stride) const {
    Floats bias[kPanelVectors];
#pragma unroll
    for (int v = 0; v < kPanelVectors; v++) bias[v] = bias_ ? load(bias_ + v * kLanes) : -0.0f;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int v = 0; v < kPanelVectors; v++) sums[r * stride + v] += bias[v];
    }
    if (activation_ != Activation::kNone || width_ != kPanel) {
      Floats kept[R][kPanelVectors];
#pragma unroll
      for (int r = 0; r < R; r++) {
#pragma unroll
        for (int v = 0; v < kPanelVectors; v++) kept[r][v] = sums[r * stride + v];
      }
      return finish_all(R, kept[0]);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      const int64_t at = place(r);
#pragma unroll
      for (int v = 0; v < kPanelVectors; v++) put_whole(at + v * kLanes, sums[r * stride + v]);
    }
  }

 private:
  int64_t place(int64_t row) const { return rows_[row] * stride_; }

  // sums [num_rows][kPanelVectors], with the bias.
  void finish_all(int64_t num_rows, const Floats* sums) const {
    switch (activation_) {
      case Activation::kSiluGate:
        for (int64_t row = 0; row < num_rows; row++) {
          Floats8 halves[2];
          memcpy(halves, sums + row * kPanelVectors, sizeof halves);
          put(row, 0, silu(halves[0]) * halves[1]);
        }
        break;
      case Activation::kGelu:
        return put_all(num_rows, sums, [](Floats x) { return gelu(x); });
      case Activation::kRelu:
        return put_all(num_rows, sums, [](Floats x) { return relu(x); });
      case Activation::kNone:
        return put_all(num_rows, sums, [](Floats x) { return x; });
    }
  }

  template <typename Function>
  INLINE void put_all(int64_t num_rows, const Floats* sums, const Function& activate) const {
    for (int64_t row = 0; row < num_rows; row++) {
      for (int v = 0; v < kPanelVectors; v++) {
        put(row, v * kLanes, activate(sums[row * kPanelVectors + v]));
      }
    }
  }

  template <typename V>
  INLINE void put_whole(int64_t at, V value) const {
    if (rest_) value += load<V>(rest_ + at);
    store(y_ + at, value);
  }

  template <typename V>
  INLINE void put(int64_t row, int64_t column, V value) const {
    constexpr int64_t kSize = sizeof(V) / sizeof(float);
    const int64_t at = place(row) + column, count = width_ - column;
    if (count >= kSize) {
      put_whole(at, value);
    } else if (count > 0) {
      if (rest_) value += load_n<V>(rest_ + at, count);
      store_n(y_ + at, value, count);
    }
  }

  Rows rows_;
  float* y_;
  const float *rest_, *bias_;
  Activation activation_;
  int64_t stride_, width_;
};

}  // namespace SIMD

#include "end_target.h"
