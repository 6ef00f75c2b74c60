#include "matmul_operator.h"

#include "adapters.h"
#include "kernels.h"
#include "matmul.h"
#include "matmul_call.h"

namespace ort {
namespace {

// The size of a task; a million multiply-adds take about 20 microseconds. Tasks that decompress
// whole panels have more rows, since each task decompresses its own copy.
struct TaskSize {
  int64_t num_rows, num_products;
};
constexpr TaskSize kTask{96, 1'000'000}, kDecompressingTask{512, 4'000'000};
constexpr int64_t kMinRows = 16;

constexpr int64_t kStackFloats = 8 * 1024;  // larger scratch is allocated

enum Input : size_t {
  kX,
  kWeights,
  kFirstParameter,
  kFirstAdapter = kFirstParameter + kNumMatMulParameters
};

struct Work {
  const MatMulCall& call;
  matmul::PackedMatrix matrix;
  TaskGrid tasks;
  const Adapters& adapters;
  int is_out_of_memory;
};

void adapter_task(void* data, size_t index) {
  Work& work = *static_cast<Work*>(data);
  if (!work.adapters.run_task(static_cast<int64_t>(index))) {
    __atomic_store_n(&work.is_out_of_memory, 1, __ATOMIC_RELAXED);
  }
}

void multiply(Work& work, int64_t task, float* scratch) {
  const Rows rows = work.tasks.rows(task);
  const int64_t first = work.tasks.first_panel(task), last = work.tasks.last_panel(task);
  Epilogue epilogue = work.call.epilogue;
  Scratch changes;
  if (!work.adapters.add(rows, first, last, changes, epilogue)) {
    return __atomic_store_n(&work.is_out_of_memory, 1, __ATOMIC_RELAXED);
  }
  kernels().matmul_multiply(work.call.x, rows, work.matrix, epilogue, first, last, scratch,
                            work.call.y);
}

void multiply_task(void* data, size_t index) {
  Work& work = *static_cast<Work*>(data);
  const int64_t task = static_cast<int64_t>(index);
  const int64_t num_panels = work.tasks.last_panel(task) - work.tasks.first_panel(task);
  const int64_t size = matmul::scratch_size(work.matrix, work.tasks.rows(task).count, num_panels);
  if (size <= kStackFloats) {
    alignas(64) float scratch[kStackFloats];
    return multiply(work, task, scratch);
  }
  Scratch scratch;
  if (void* floats = scratch.allocate(size * sizeof(float))) {
    return multiply(work, task, static_cast<float*>(floats));
  }
  __atomic_store_n(&work.is_out_of_memory, 1, __ATOMIC_RELAXED);
}

struct PackedMatMul {
  static constexpr const char* kName = "PackedMatMul";
  static constexpr Parameter kInputs[] = {{kFloat}, {kUInt8}, MATMUL_PARAMETERS, ADAPTER_PARAMETERS};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static constexpr int kInPlaceInput = kFirstParameter + kResidual;

  MatMulAttributes attributes;
  AdapterAttributes adapter_attributes;
  WeightFormat format;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(attributes.read(api, info));
    RETURN_IF_FAILED(adapter_attributes.read(api, info));
    return read_weight_format(api, info, WeightFormat::kFloat32, WeightFormat::kInt4Blocks, format);
  }

  Status* run(const Api& api, KernelContext* context) const {
    MatMulCall call{};
    RETURN_IF_FAILED(call.read(api, context, attributes, kFirstParameter));
    const uint8_t* weights = nullptr;
    RETURN_IF_FAILED(input_data(api, context, kWeights, weights));
    Adapters adapters;
    RETURN_IF_FAILED(
        adapters.read(api, context, adapter_attributes, kFirstAdapter, call, nullptr));
    const bool is_decompressing =
        format != WeightFormat::kFloat32 && call.rows.count > kTask.num_rows;
    const TaskSize task = is_decompressing ? kDecompressingTask : kTask;
    Work work{call,
              {weights, format, call.num_inputs, call.num_outputs},
              TaskGrid(call, task.num_rows, task.num_products, kMinRows),
              adapters,
              0};
    RETURN_IF_FAILED(run_tasks(api, context, adapter_task, adapters.num_tasks(), &work));
    RETURN_IF_FAILED(run_tasks(api, context, multiply_task, work.tasks.count(), &work));
    return work.is_out_of_memory ? out_of_memory(api) : call.normalize(api, context);
  }
};

}  // namespace

const Operator& packed_matmul() { return make_operator<PackedMatMul>(); }

}  // namespace ort
