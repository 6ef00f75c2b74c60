#include "matmul_operator.h"

#include "matmul.h"
#include "operator.h"

namespace ort {
namespace {

constexpr int64_t kTaskProducts = 1'000'000;  // about 20 microseconds
constexpr int64_t kTaskRows = 96;
constexpr int64_t kMaxPanelTasks = 32;

enum Input : size_t { kX, kWeights, kSettings, kBias, kRest, kNumInputs };

struct Work {
  const float* x;
  int64_t num_rows;
  matmul::Matrix matrix;
  Epilogue epilogue;
  float* y;
  int64_t num_panel_tasks, panels_per_task;
};

// Tasks that read the same panels follow each other.
void multiply_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t num_row_tasks = ceil_div(work.num_rows, kTaskRows);
  const int64_t row = static_cast<int64_t>(index) % num_row_tasks * kTaskRows;
  const int64_t first = static_cast<int64_t>(index) / num_row_tasks * work.panels_per_task;
  Epilogue epilogue = work.epilogue;
  const int64_t width = epilogue.width_of(work.matrix.num_outputs);
  if (epilogue.rest) epilogue.rest += row * width;
  matmul::multiply(work.x + row * work.matrix.num_inputs, smaller(kTaskRows, work.num_rows - row),
                   work.matrix, epilogue, first,
                   smaller(first + work.panels_per_task, work.matrix.num_panels()),
                   work.y + row * width);
}

struct PackedMatMul {
  static constexpr const char* kName = "PackedMatMul";
  static constexpr Parameter kInputs[] = {
      {kFloat}, {kFloat}, {kInt32}, {kFloat, true}, {kFloat, true}};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static Status* run(const Api& api, KernelContext* context);
};

Status* PackedMatMul::run(const Api& api, KernelContext* context) {
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
  work.matrix = {static_cast<const float*>(data[kWeights]), shape.last(), settings[0]};
  work.epilogue = {static_cast<const float*>(data[kBias]), static_cast<const float*>(data[kRest]),
                   static_cast<Activation>(settings[1])};
  shape.sizes[shape.rank - 1] = work.epilogue.width_of(work.matrix.num_outputs);
  Value* output = nullptr;
  void* y = nullptr;
  RETURN_IF_FAILED(api.Output(context, 0, shape.sizes, shape.rank, &output));
  RETURN_IF_FAILED(api.Data(output, &y));
  work.y = static_cast<float*>(y);
  if (!work.num_rows || !work.matrix.num_outputs) return nullptr;

  const int64_t num_panels = work.matrix.num_panels();
  const int64_t num_rows = smaller(kTaskRows, work.num_rows);
  const int64_t panel_products = num_rows * work.matrix.num_inputs * kPanel;
  const int64_t wanted = ceil_div(kTaskProducts, larger(1, panel_products));
  work.panels_per_task = smaller(num_panels, larger(wanted, ceil_div(num_panels, kMaxPanelTasks)));
  work.num_panel_tasks = ceil_div(num_panels, work.panels_per_task);
  const int64_t count = work.num_panel_tasks * ceil_div(work.num_rows, kTaskRows);
  if (count == 1) {
    multiply_task(&work, 0);
    return nullptr;
  }
  return api.ParallelFor(context, multiply_task, count, &work);
}

}  // namespace

const Operator& packed_matmul() { return operator_of<PackedMatMul>(); }

}  // namespace ort
