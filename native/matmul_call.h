// What the operators of products share: the inputs after the matrix, and how threads divide it.
#pragma once

#include "integers.h"
#include "operator.h"
#include "epilogue.h"
#include "weight_format.h"

namespace ort {

// After x and the matrix: settings, int32 [outputs, Activation, Form]; bias and rest as Epilogue
// has them; lengths, int32 [batch], how many rows of each x [batch, length, inputs] count.
#define PRODUCT_PARAMETERS {kInt32}, {kFloat, true}, {kFloat, true}, {kInt32, true}
constexpr size_t kNumProductInputs = 4;

struct Product {
  const float* x;
  int64_t num_inputs, num_outputs;
  weights::Form form;  // of a matrix in fp32
  Rows rows;  // of x and y that count
  Epilogue epilogue;
  float* y;
  Scratch places;  // of the rows

  // Reads x, which is input 0, and those from input `first` on. Makes y, and writes zeros to rows
  // that do not count.
  Status* read(const Api& api, KernelContext* context, size_t first);
};

// Tasks, each some rows times some panels. Those that read the same panels follow each other.
class Tiles {
 public:
  // `num_products` of numbers make a task that is worth a thread's while. Fewer rows than
  // `least_rows` take no less time: they wait for the matrix.
  Tiles(const Product& product, int64_t rows_of_task, int64_t num_products, int64_t least_rows);

  int64_t count() const { return num_row_tasks_ * div_ceil(num_panels_, panels_of_task_); }
  Rows rows(int64_t task) const {
    const int64_t begin = task % num_row_tasks_ * rows_of_task_;
    return rows_.part(begin, min(rows_of_task_, rows_.count - begin));
  }
  int64_t first_panel(int64_t task) const { return task / num_row_tasks_ * panels_of_task_; }
  int64_t last_panel(int64_t task) const {
    return min(first_panel(task) + panels_of_task_, num_panels_);
  }

 private:
  Rows rows_;
  int64_t num_panels_, rows_of_task_, panels_of_task_, num_row_tasks_;
};

}  // namespace ort
