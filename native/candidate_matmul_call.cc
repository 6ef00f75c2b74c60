#include "candidate_matmul_call.h"

#include "integers.h"
#include "kernels.h"

namespace ort {
namespace {

constexpr int64_t kTaskProducts = 1'000'000;  // multiply-adds: tens of microseconds

struct Work {
  candidate_matmul::Rows rows;
  candidate_matmul::Matrix matrix;
  const float *x, *input_factors;
  int64_t num_inputs, rows_per_task;
  uint8_t* bytes;
  float *max_abs, *y;
};

// Quantizes and multiplies the rows of one task.
void run_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t first = static_cast<int64_t>(index) * work.rows_per_task;
  candidate_matmul::Rows rows = work.rows;
  rows.count = min(work.rows_per_task, work.rows.count - first);
  rows.bytes += first * rows.row_bytes;
  rows.max_abs += first;
  rows.ids += first * rows.width;
  kernels().int8_quantize(work.x, work.input_factors, {nullptr, first, rows.count},
                          work.num_inputs, work.bytes + first * rows.row_bytes,
                          work.max_abs + first);
  kernels().candidate_multiply(rows, work.matrix, work.y + first * rows.width);
}

}  // namespace

Status* Candidates::read(const Api& api, const Value* value) {
  if (!value) return nullptr;
  Dimensions shape;
  RETURN_IF_FAILED(dimensions(api, value, shape));
  if (shape.rank != 2) return api.CreateStatus(kInvalidArgument, "candidates must be [rows, width]");
  RETURN_IF_FAILED(data_of(api, value, ids));
  num_rows = shape.sizes[0];
  width = shape.sizes[1];
  return nullptr;
}

Status* Candidates::check(const Api& api, int64_t expected_rows, int64_t num_outputs) const {
  if (num_rows != expected_rows) {
    return api.CreateStatus(kInvalidArgument, "candidates must have one row for each row of x");
  }
  int32_t smallest = 0, largest = 0;
  for (int64_t i = 0; i < num_rows * width; i++) {
    smallest = ids[i] < smallest ? ids[i] : smallest;
    largest = ids[i] > largest ? ids[i] : largest;
  }
  if (smallest >= -1 && largest < num_outputs) return nullptr;
  return api.CreateStatus(kInvalidArgument, "a candidate is not an output");
}

Status* multiply_candidates(const Api& api, KernelContext* context, const Candidates& candidates,
                            const MatMulAttributes& attributes,
                            const candidate_matmul::Matrix& matrix,
                            const float* input_factors) {
  const Value* value = nullptr;
  Dimensions shape;
  const float* x = nullptr;
  RETURN_IF_FAILED(api.Input(context, 0, &value));
  RETURN_IF_FAILED(dimensions(api, value, shape));
  RETURN_IF_FAILED(data_of(api, value, x));
  RETURN_IF_FAILED(attributes.check_x(api, shape));
  const int64_t num_rows = shape.num_rows(), num_inputs = attributes.num_inputs;
  RETURN_IF_FAILED(candidates.check(api, num_rows, attributes.num_outputs));
  const int64_t row_bytes = round_up(num_inputs, 4);  // as Quantize writes them
  float* y = nullptr;
  const int64_t sizes[] = {num_rows, candidates.width};
  RETURN_IF_FAILED(output_data(api, context, 0, sizes, 2, y));
  Scratch scratch;
  void* const memory =
      scratch.allocate(num_rows * (row_bytes + sizeof(float)) + candidate_matmul::kBlock);
  if (!memory) return out_of_memory(api);
  Work work{};
  work.max_abs = static_cast<float*>(memory);
  work.bytes = reinterpret_cast<uint8_t*>(work.max_abs + num_rows);
  work.rows = {work.bytes, work.max_abs, candidates.ids, num_rows, row_bytes, candidates.width};
  work.matrix = matrix;
  work.x = x;
  work.input_factors = input_factors;
  work.num_inputs = num_inputs;
  work.y = y;
  const int64_t products_per_row = max(1, candidates.width * matrix.stride);
  work.rows_per_task = max(1, div_ceil(kTaskProducts, products_per_row));
  return run_tasks(api, context, run_task, div_ceil(num_rows, work.rows_per_task), &work);
}

}  // namespace ort
