// What follows a product, and where it goes.
#pragma once

#include <stdint.h>

constexpr int64_t kPanel = 16;  // outputs side by side

// A gate: of 2n outputs, panels have eight of the first n, then eight of the last n, as
// server/runtime/kernels/epilogue.py lays them. Shazeer 2020.
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
  // How many of them, from the first on, lie side by side.
  int64_t run() const {
    int64_t size = index ? 1 : count;
    while (size < count && index[first + size] == index[first] + size) size++;
    return size;
  }
  Rows part(int64_t begin, int64_t size) const { return {index, first + begin, size}; }
};
