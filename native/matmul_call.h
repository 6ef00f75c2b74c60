// Shared by the matrix products: attributes, the inputs after the matrix, skipping of padding rows,
// and the division into tasks.
#pragma once

#include "epilogue.h"
#include "integers.h"
#include "norm_call.h"
#include "operator.h"
#include "weight_format.h"

namespace ort {

// Attributes of all matrix products, all required: num_inputs and num_outputs, without padding;
// activation, a number of Activation; y_norm_epsilon and y_norm_is_centered.
struct MatMulAttributes {
  int64_t num_inputs, num_outputs;
  Activation activation;
  NormAttributes y_norm;

  Status* read(const Api& api, const KernelInfo* info);
  // Fails unless the rows of x have num_inputs elements: kernels read as much of W.
  Status* check_x(const Api& api, const Dimensions& x) const;
};

// The attribute weight_format, which must be one from `first` to `last`.
Status* read_weight_format(const Api& api, const KernelInfo* info, WeightFormat first,
                           WeightFormat last, WeightFormat& out);

// Inputs of all matrix products after the matrix, optional: bias and residual as in Epilogue;
// lengths, int32 [batch], for x [batch, length, num_inputs]: rows after a length are padding.
// If NORM_PARAMETERS are given, y is normalized at the end.
#define MATMUL_PARAMETERS {kFloat, true}, {kFloat, true}, {kInt32, true}, NORM_PARAMETERS
// Indices among MATMUL_PARAMETERS.
constexpr size_t kBias = 0, kResidual = 1, kLengths = 2, kFirstYNorm = 3,
                 kNumMatMulParameters = kFirstYNorm + kNumNormParameters;

// One run of a matrix product.
struct MatMulCall {
  const float* x;  // [.., num_inputs]
  int64_t num_inputs, num_outputs;
  Rows rows;  // of x and y, without padding
  Epilogue epilogue;
  norm::Norm y_norm;
  float* y;         // [.., width]
  Scratch indices;  // memory of rows.indices

  // Reads x, input 0, and the inputs from `first` on. Fails if their shapes do not fit, or a length
  // is negative. Allocates y and writes zeros to padding rows.
  Status* read(const Api& api, KernelContext* context, const MatMulAttributes& attributes,
               size_t first);
  // The last step: normalizes y, padding included, if there is a norm.
  Status* normalize(const Api& api, const KernelContext* context) const;
  // The rows of x and y, with padding.
  int64_t num_rows() const { return num_rows_; }

 private:
  Status* skip_padding(const Api& api, const int32_t* lengths, int64_t batch, int64_t length);

  int64_t num_rows_;  // of y, with padding
};

// A grid of tasks, each a block of rows times a range of panels. Tasks with the same rows are
// consecutive.
class TaskGrid {
 public:
  // Tasks have up to `rows_per_task` rows, and enough panels for `min_products` multiply-adds, so
  // that their work outweighs their overhead. Fewer rows count as `min_rows`: most of their time is
  // spent reading W.
  TaskGrid(const MatMulCall& call, int64_t rows_per_task, int64_t min_products, int64_t min_rows);

  int64_t count() const { return div_ceil(rows_.count, rows_per_task_) * num_panel_tasks_; }
  Rows rows(int64_t task) const {
    const int64_t begin = task / num_panel_tasks_ * rows_per_task_;
    return rows_.slice(begin, min(rows_per_task_, rows_.count - begin));
  }
  int64_t first_panel(int64_t task) const { return task % num_panel_tasks_ * panels_per_task_; }
  int64_t last_panel(int64_t task) const {
    return min(first_panel(task) + panels_per_task_, num_panels_);
  }

 private:
  Rows rows_;
  int64_t num_panels_, rows_per_task_, panels_per_task_, num_panel_tasks_;
};

}  // namespace ort
