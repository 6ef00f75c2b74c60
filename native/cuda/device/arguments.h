// The arguments of the kernels, which native/cuda/operators.cc fills. T is a 16-bit float.
#pragma once

namespace device {

// Arrays of `size` columns; those that may be null are marked.
template <typename T>
struct NormArguments {
  const T* x;
  const T* x_bias;    // null, or added to each row of x
  const T* residual;  // null, or added to x
  const T* scale;
  const T* bias;  // null, or added to the result
  T* y;
  T* sum;  // null, or x + x_bias + residual
  int size;
  float epsilon;
  int is_centered;  // 1: LayerNormalization
};

// act(x + bias), or act(a) * b of the halves a and b of a row of x + bias.
enum Activation : int { kSilu, kRelu };

template <typename T>
struct ActivationArguments {
  const T* x;
  const T* bias;  // null, or as long as a row of x
  T* y;
  long num_vectors;  // of y
  int row_vectors;   // of a row of y
  int kind;
  int is_gated;  // 1: a row of x is twice as long as one of y
};

template <typename T>
struct SplitArguments {
  const T* x;
  const T* bias;  // null, or as long as a row of x
  T* parts[3];
  long num_vectors;  // of x
  int row_vectors;   // of a row of x
  int part_vectors[3];
};

struct BestTokenArguments {
  const float* logits;              // [rows, vocabulary]
  const unsigned char* suppressed;  // null, or [vocabulary]: 1 for tokens that are never chosen
  long* tokens;                     // [rows]
  int vocabulary;
};

// x [rows, size, inner], y [rows, inner].
struct ExtremeArguments {
  const float* x;
  float* y;
  long num_outputs;
  int size, inner;
  int is_min;
};

}  // namespace device
