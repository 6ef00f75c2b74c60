#include "row_int8_operator.h"

#include "operator.h"
#include "row_int8.h"

namespace ort {
namespace {

// Products in a task, of which a row takes about 10 microseconds and a batch 3.
constexpr int64_t kTaskProducts = 250'000;
constexpr int64_t kMaxTasks = 64;
constexpr int64_t kQuantizeRows = 16;  // of a task

enum Input : size_t { kX, kWeights, kScales, kOffsets, kSettings, kBias, kRest, kNumInputs };

struct Work {
  const float* x;
  int64_t num_rows;
  row_int8::Matrix matrix;
  Epilogue epilogue;
  uint8_t* bytes;
  float* largest;
  float* y;
  int64_t panels_per_task;
};

void quantize_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t begin = static_cast<int64_t>(index) * kQuantizeRows;
  const int64_t stride = work.matrix.num_groups() * row_int8::kGroup;
  row_int8::quantize(work.x + begin * work.matrix.num_inputs,
                     smaller(kQuantizeRows, work.num_rows - begin), work.matrix.num_inputs,
                     work.bytes + begin * stride, work.largest + begin);
}

void multiply_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t first = static_cast<int64_t>(index) * work.panels_per_task;
  const int64_t last = smaller(first + work.panels_per_task, work.matrix.num_panels());
  row_int8::multiply(work.bytes, work.largest, work.num_rows, work.matrix, work.epilogue,
                     first, last, work.y);
}

struct RowInt8MatMul {
  static constexpr const char* kName = "RowInt8MatMul";
  static constexpr Parameter kInputs[] = {{kFloat}, {kInt8},        {kFloat},      {kInt32},
                                          {kInt32}, {kFloat, true}, {kFloat, true}};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static Status* run(const Api& api, KernelContext* context);
};

Status* RowInt8MatMul::run(const Api& api, KernelContext* context) {
  const Value* values[kNumInputs];
  void* data[kNumInputs] = {};
  for (size_t index = 0; index < kNumInputs; index++) {
    RETURN_IF_FAILED(api.Input(context, index, &values[index]));
    if (values[index]) RETURN_IF_FAILED(api.Data(values[index], &data[index]));
  }
  Dimensions shape;
  RETURN_IF_FAILED(dimensions(api, values[kX], shape));
  const int32_t* settings = static_cast<const int32_t*>(data[kSettings]);

  Work work{};
  work.x = static_cast<const float*>(data[kX]);
  work.num_rows = shape.rows();
  work.matrix = {static_cast<const int8_t*>(data[kWeights]),
                 static_cast<const float*>(data[kScales]),
                 static_cast<const int32_t*>(data[kOffsets]), shape.last(), settings[0]};
  work.epilogue = {static_cast<const float*>(data[kBias]), static_cast<const float*>(data[kRest]),
                   static_cast<Activation>(settings[1])};
  shape.sizes[shape.rank - 1] = work.epilogue.width_of(work.matrix.num_outputs);
  Value* output = nullptr;
  RETURN_IF_FAILED(api.Output(context, 0, shape.sizes, shape.rank, &output));
  void* y = nullptr;
  RETURN_IF_FAILED(api.Data(output, &y));
  work.y = static_cast<float*>(y);
  if (!work.num_rows || !work.matrix.num_outputs) return nullptr;

  const size_t row_bytes = work.matrix.num_groups() * row_int8::kGroup;
  const Scratch scratch(work.num_rows * (row_bytes + sizeof(float)));
  if (!scratch.data()) return api.CreateStatus(kRuntimeException, "no memory");
  work.largest = static_cast<float*>(scratch.data());
  work.bytes = reinterpret_cast<uint8_t*>(work.largest + work.num_rows);

  const int64_t num_blocks = ceil_div(work.num_rows, kQuantizeRows);
  if (num_blocks == 1) {
    quantize_task(&work, 0);
  } else {
    RETURN_IF_FAILED(api.ParallelFor(context, quantize_task, num_blocks, &work));
  }
  const int64_t num_panels = work.matrix.num_panels();
  const int64_t num_products = work.num_rows * work.matrix.num_inputs * work.matrix.num_outputs;
  const int64_t num_tasks = larger(1, smaller(num_products / kTaskProducts, smaller(kMaxTasks, num_panels)));
  work.panels_per_task = ceil_div(num_panels, num_tasks);
  const int64_t count = ceil_div(num_panels, work.panels_per_task);
  if (count == 1) {
    multiply_task(&work, 0);
    return nullptr;
  }
  return api.ParallelFor(context, multiply_task, count, &work);
}

}  // namespace

const Operator& row_int8_matmul() { return operator_of<RowInt8MatMul>(); }

}  // namespace ort
