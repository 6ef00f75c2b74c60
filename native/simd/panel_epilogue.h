// The epilogue of one panel: adds the bias, applies the activation, adds the residual and stores.
//
// Micro-kernels call apply() with the sums of a micro-tile, [rows][vectors], while those are in
// registers.
#pragma once

#include "../epilogue.h"
#include "activations.h"

#include "begin_target.h"

namespace SIMD {

constexpr int kPanelVectors = kPanelWidth / kLanes;

// Whether the factors of the products are exact or rounded to 8 bits.
enum class Factors { kExact, kRounded };

template <Factors kFactors>
class PanelEpilogue {
 public:
  // For the given rows of y [.., width]; `num_outputs` is the width of W, without padding.
  INLINE PanelEpilogue(const Epilogue& epilogue, int64_t num_outputs, const Rows& rows,
                       int64_t panel, float* y)
      : rows_(rows),
        activation_(epilogue.activation),
        stride_(epilogue.width_of(num_outputs)),
        changes_stride_(epilogue.changes.stride) {
    const int64_t panel_width = epilogue.is_gated() ? kPanelWidth / 2 : kPanelWidth;
    const int64_t column = panel * panel_width;
    y_ = y + column;
    residual_ = epilogue.residual ? epilogue.residual + column : nullptr;
    bias_ = epilogue.bias ? epilogue.bias + panel * kPanelWidth : nullptr;
    const Changes& changes = epilogue.changes;
    changes_ = changes.data;
    if (changes_) {
      changes_ += (rows.first - changes.first_row) * changes_stride_;
      changes_ += (panel - changes.first_panel) * kPanelWidth;
    }
    width_ = stride_ - column < panel_width ? stride_ - column : panel_width;
  }

  // Skips `num_rows` rows.
  INLINE void advance(int64_t num_rows) {
    rows_.first += num_rows;
    if (changes_) changes_ += num_rows * changes_stride_;
  }
  INLINE void prefetch(int64_t row) const {
    const int64_t at = offset(row);
    __builtin_prefetch(y_ + at, 1);
    if (residual_) __builtin_prefetch(residual_ + at);
  }

  // Applies the epilogue to sums [R][stride], in vectors, of the next R rows. Without an
  // activation, and with gates, the sums go from registers straight to y.
  template <int R>
  INLINE void apply(Floats* sums, int64_t stride) const {
    if (changes_) add_changes<R>(sums, stride);
    add_bias<R>(sums, stride);
    if (activation_ == Activation::kSiluGate) {
      if (width_ < kPanelWidth / 2) return gate_and_store<R, true>(sums, stride);
      return gate_and_store<R, false>(sums, stride);
    }
    if (activation_ != Activation::kNone || width_ != kPanelWidth) {
      Floats spilled[R][kPanelVectors];
#pragma unroll
      for (int r = 0; r < R; r++) {
#pragma unroll
        for (int v = 0; v < kPanelVectors; v++) spilled[r][v] = sums[r * stride + v];
      }
      return activate_and_store(R, spilled[0]);
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
      const int64_t at = offset(r);
#pragma unroll
      for (int v = 0; v < kPanelVectors; v++) store_full(at + v * kLanes, sums[r * stride + v]);
    }
  }

 private:
  int64_t offset(int64_t row) const { return rows_[row] * stride_; }

  template <int R>
  INLINE void add_bias(Floats* sums, int64_t stride) const {
    Floats bias[kPanelVectors];
#pragma unroll
    for (int v = 0; v < kPanelVectors; v++) bias[v] = bias_ ? load(bias_ + v * kLanes) : -0.0f;
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int v = 0; v < kPanelVectors; v++) sums[r * stride + v] += bias[v];
    }
  }

  template <int R>
  INLINE void add_changes(Floats* sums, int64_t stride) const {
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
      for (int v = 0; v < kPanelVectors; v++) {
        sums[r * stride + v] += load(changes_ + r * changes_stride_ + v * kLanes);
      }
    }
  }

  // sums [num_rows][kPanelVectors] include the bias.
  void activate_and_store(int64_t num_rows, const Floats* sums) const {
    switch (activation_) {
      case Activation::kSiluGate:
        return;  // apply() has stored them
      case Activation::kGelu:
        return map_and_store(num_rows, sums, [](Floats x) {
          return kFactors == Factors::kRounded ? gelu_coarse(x) : gelu(x);
        });
      case Activation::kRelu:
        return map_and_store(num_rows, sums, [](Floats x) { return relu(x); });
      case Activation::kNone:
        return map_and_store(num_rows, sums, [](Floats x) { return x; });
    }
  }

  // Gated activation: the first eight sums of a row gate the other eight. Sums [R][stride], in
  // vectors, are in registers.
  template <int R, bool kIsClipped>
  INLINE void gate_and_store(const Floats* sums, int64_t stride) const {
    const auto store_row = [&](int64_t row, Floats8 value) __attribute__((always_inline)) {
      if constexpr (kIsClipped) return store_clipped(row, 0, value);
      store_full(offset(row), value);
    };
#if SIMD_BITS == 512
#pragma unroll
    for (int r = 0; r < R; r += 2) {  // two rows fill a register
      const Floats first = sums[r * stride], second = sums[(r + 1 < R ? r + 1 : r) * stride];
      Floats gates, inputs;
      gates.lo = first.lo, gates.hi = second.lo;
      inputs.lo = first.hi, inputs.hi = second.hi;
      const Floats products = gated(gates, inputs);
      store_row(r, products.lo);
      if (r + 1 < R) store_row(r + 1, products.hi);
    }
#else
#pragma unroll
    for (int r = 0; r < R; r++) {
      store_row(r, gated(sums[r * stride], sums[r * stride + 1]));
    }
#endif
  }
  INLINE static Floats gated(Floats gates, Floats inputs) {
    return (kFactors == Factors::kRounded ? silu_coarse(gates) : silu(gates)) * inputs;
  }

  template <typename Function>
  INLINE void map_and_store(int64_t num_rows, const Floats* sums, const Function& activate) const {
    for (int64_t row = 0; row < num_rows; row++) {
      for (int v = 0; v < kPanelVectors; v++) {
        store_clipped(row, v * kLanes, activate(sums[row * kPanelVectors + v]));
      }
    }
  }

  template <typename V>
  INLINE void store_full(int64_t at, V value) const {
    if (residual_) value += load<V>(residual_ + at);
    store(y_ + at, value);
  }

  // Stores without the padding columns of the last panel.
  template <typename V>
  INLINE void store_clipped(int64_t row, int64_t column, V value) const {
    constexpr int64_t kSize = sizeof(V) / sizeof(float);
    const int64_t at = offset(row) + column, count = width_ - column;
    if (count >= kSize) {
      store_full(at, value);
    } else if (count > 0) {
      if (residual_) value += load_n<V>(residual_ + at, count);
      store_n(y_ + at, value, count);
    }
  }

  Rows rows_;
  float* y_;
  const float *residual_, *bias_, *changes_;  // changes_: of the next row
  Activation activation_;
  int64_t stride_, width_, changes_stride_;
};

}  // namespace SIMD

#include "end_target.h"
