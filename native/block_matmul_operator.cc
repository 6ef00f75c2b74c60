#include "block_matmul_operator.h"

#include "adapters.h"
#include "block_matmul.h"
#include "input_norm.h"
#include "kernels.h"
#include "matmul_call.h"

namespace ort {
namespace {

constexpr int64_t kTaskProducts = 1'000'000;  // multiply-adds: about 10 microseconds
constexpr int64_t kTaskRows = 128, kMinRows = 4;
constexpr int64_t kQuantizeTaskRows = 16;

enum Input : size_t {
  kX,
  kWeights,
  kFirstParameter,
  kFirstXNorm = kFirstParameter + kNumMatMulParameters,
  kFirstAdapter = kFirstXNorm + kNumNormParameters
};

struct Work {
  const MatMulCall& call;
  block_matmul::PackedMatrix matrix;
  norm::Norm x_norm;
  TaskGrid tasks;
  const Adapters& adapters;
  uint8_t* quantized;  // [rows][row_bytes]
  int is_out_of_memory;
};

void quantize_task(void* data, size_t index) {
  Work& work = *static_cast<Work*>(data);
  const int64_t task = static_cast<int64_t>(index) - work.adapters.num_tasks();
  if (task < 0) {  // both read x only
    if (work.adapters.run_task(static_cast<int64_t>(index))) return;
    return __atomic_store_n(&work.is_out_of_memory, 1, __ATOMIC_RELAXED);
  }
  const int64_t begin = task * kQuantizeTaskRows;
  const Rows& all = work.call.rows;
  const auto quantize = [&](const float* x, const Rows& rows, int64_t first) {
    kernels().block_quantize(x, rows, work.matrix,
                             work.quantized + (begin + first) * work.matrix.row_bytes());
  };
  normalize_and_quantize(work.x_norm, work.call.x,
                         all.slice(begin, min(kQuantizeTaskRows, all.count - begin)), quantize);
}

void multiply_task(void* data, size_t index) {
  Work& work = *static_cast<Work*>(data);
  const int64_t task = static_cast<int64_t>(index);
  const Rows rows = work.tasks.rows(task);
  Scratch scratch;
  uint8_t* memory = nullptr;
  if (const int64_t size = block_matmul::scratch_size(work.matrix, rows.count)) {
    memory = static_cast<uint8_t*>(scratch.allocate(size));
    if (!memory) return __atomic_store_n(&work.is_out_of_memory, 1, __ATOMIC_RELAXED);
  }
  const int64_t begin = rows.first - work.call.rows.first;
  const int64_t first = work.tasks.first_panel(task), last = work.tasks.last_panel(task);
  Epilogue epilogue = work.call.epilogue;
  Scratch changes;
  if (!work.adapters.add(rows, first, last, changes, epilogue)) {
    return __atomic_store_n(&work.is_out_of_memory, 1, __ATOMIC_RELAXED);
  }
  kernels().block_multiply(work.quantized + begin * work.matrix.row_bytes(), rows, work.matrix,
                           epilogue, first, last, memory, work.call.y);
}

struct DynamicBlockMatMul {
  static constexpr const char* kName = "DynamicBlockMatMul";
  static constexpr Parameter kInputs[] = {{kFloat}, {kUInt8}, MATMUL_PARAMETERS, NORM_PARAMETERS,
                                          ADAPTER_PARAMETERS};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static constexpr int kInPlaceInput = kFirstParameter + kResidual;

  MatMulAttributes attributes;
  InputNorm input_norm;
  AdapterAttributes adapter_attributes;
  WeightFormat format;
  int64_t max_sum;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(attributes.read(api, info));
    RETURN_IF_FAILED(input_norm.read(api, info));
    RETURN_IF_FAILED(adapter_attributes.read(api, info));
    RETURN_IF_FAILED(api.Attribute(info, "max_sum", &max_sum));
    if (max_sum < block_matmul::kMinMaxSum) {
      return api.CreateStatus(kInvalidArgument, "max_sum must be at least 256");
    }
    return read_weight_format(api, info, WeightFormat::kInt8Blocks, WeightFormat::kInt6Blocks,
                              format);
  }

  Status* run(const Api& api, KernelContext* context) const {
    MatMulCall call{};
    RETURN_IF_FAILED(call.read(api, context, attributes, kFirstParameter));
    const int64_t num_inputs = call.num_inputs;
    if (num_inputs % block_matmul::kBlockInputs || num_inputs > block_matmul::kMaxInputs) {
      return api.CreateStatus(kInvalidArgument, "the inputs must be a multiple of 32, up to 65536");
    }
    norm::Norm x_norm;
    RETURN_IF_FAILED(input_norm.norm(api, context, kFirstXNorm, num_inputs, x_norm));
    Adapters adapters;
    RETURN_IF_FAILED(
        adapters.read(api, context, adapter_attributes, kFirstAdapter, call, &x_norm));
    const uint8_t* weights = nullptr;
    RETURN_IF_FAILED(input_data(api, context, kWeights, weights));
    Work work{call,
              {weights, format, call.num_inputs, call.num_outputs, max_sum},
              x_norm,
              TaskGrid(call, kTaskRows, kTaskProducts, kMinRows),
              adapters,
              nullptr,
              0};
    const int64_t num_rows = call.rows.count;
    Scratch scratch;
    void* const memory = scratch.allocate(num_rows * work.matrix.row_bytes());
    if (!memory) return out_of_memory(api);
    work.quantized = static_cast<uint8_t*>(memory);
    const int64_t num_tasks = adapters.num_tasks() + div_ceil(num_rows, kQuantizeTaskRows);
    RETURN_IF_FAILED(run_tasks(api, context, quantize_task, num_tasks, &work));
    RETURN_IF_FAILED(run_tasks(api, context, multiply_task, work.tasks.count(), &work));
    return work.is_out_of_memory ? out_of_memory(api) : call.normalize(api, context);
  }
};

}  // namespace

const Operator& dynamic_block_matmul() { return make_operator<DynamicBlockMatMul>(); }

}  // namespace ort
