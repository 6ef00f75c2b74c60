// Where the sums of a product go, and what is done with them while they are in registers.
#pragma once

#include <stdint.h>

#include "activations.h"

constexpr int64_t kPanel = 16;  // outputs side by side, in two registers

// A gate: of 2n outputs, panels have eight of the first n, then eight of the last n, as
// server/backend/kernels/epilogue.py lays them. Shazeer 2020.
enum class Activation : int32_t { kNone = 0, kRelu = 1, kGelu = 2, kSiluGate = 3 };

// y = activation(sum + bias) + rest; of a gate, activation(first half) * second half.
struct Epilogue {
  const float* bias;  // [outputs], or null; as the panels have them
  const float* rest;  // [rows, width of y], or null
  Activation activation;

  bool is_gated() const { return activation == Activation::kSiluGate; }
  int64_t width_of(int64_t num_outputs) const { return is_gated() ? num_outputs / 2 : num_outputs; }
};

// Those of x and y that are computed, in order: `count` of them from number `first` on.
struct Rows {
  const int32_t* index;  // their places in x and y; null: all there are
  int64_t first, count;

  int64_t operator[](int64_t i) const { return index ? index[first + i] : first + i; }
  Rows part(int64_t begin, int64_t size) const { return {index, first + begin, size}; }
};

// One panel's part of some rows of y.
class Output {
 public:
  // Of y [rows, width]; `num_outputs` as the matrix has them.
  Output(const Epilogue& epilogue, int64_t num_outputs, const Rows& rows, int64_t panel, float* y)
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

  void skip(int64_t num_rows) { rows_.first += num_rows; }
  void fetch(int64_t row) const { __builtin_prefetch(y_ + rows_[row] * stride_, 1); }

  AVX2_FMA_INLINE void finish(int64_t row, __m256* sums) const {
    for (int half = 0; bias_ && half < 2; half++) {
      sums[half] = _mm256_add_ps(sums[half], _mm256_loadu_ps(bias_ + 8 * half));
    }
    if (activation_ == Activation::kSiluGate) {
      return finish_half(row, 0, _mm256_mul_ps(activations::silu(sums[0]), sums[1]));
    }
    for (int half = 0; half < 2; half++) {
      if (activation_ == Activation::kGelu) sums[half] = activations::gelu(sums[half]);
      if (activation_ == Activation::kRelu) sums[half] = activations::relu(sums[half]);
      finish_half(row, half, sums[half]);
    }
  }

 private:
  AVX2_FMA_INLINE void finish_half(int64_t row, int half, __m256 value) const {
    if (rest_) value = _mm256_add_ps(value, load(rest_ + rows_[row] * stride_, half));
    put(row, half, value);
  }
  AVX2_FMA_INLINE bool is_whole(int half) const { return width_ >= 8 * (half + 1); }
  // Which of a half's outputs exist.
  AVX2_FMA_INLINE __m256i mask(int half) const {
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(width_) - 8 * half), places);
  }
  AVX2_FMA_INLINE __m256 load(const float* from, int half) const {
    return is_whole(half) ? _mm256_loadu_ps(from + 8 * half)
                          : _mm256_maskload_ps(from + 8 * half, mask(half));
  }
  AVX2_FMA_INLINE void put(int64_t row, int half, __m256 value) const {
    float* to = y_ + rows_[row] * stride_ + 8 * half;
    if (is_whole(half)) {
      _mm256_storeu_ps(to, value);
    } else {
      _mm256_maskstore_ps(to, mask(half), value);
    }
  }

  Rows rows_;
  float* y_;
  const float *rest_, *bias_;
  Activation activation_;
  int64_t stride_, width_;
};
