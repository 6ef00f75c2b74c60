#include "int8_matmul_operator.h"

#include "adapters.h"
#include "candidate_matmul_call.h"
#include "input_norm.h"
#include "int8_matmul.h"
#include "kernels.h"
#include "matmul_call.h"

namespace ort {
namespace {

constexpr int64_t kTaskProducts = 1'000'000;  // multiply-adds: about 10 microseconds
constexpr int64_t kTaskRows = 256, kMinRows = 4;
constexpr int64_t kQuantizeTaskRows = 16;

enum Input : size_t {
  kX,
  kWeights,
  kGroupOrder,
  kScales,
  kZeroPointSums,
  kInputFactors,
  kFirstParameter,
  kColumns = kFirstParameter + kNumMatMulParameters,
  kCandidates,
  kFirstXNorm,
  kFirstAdapter = kFirstXNorm + kNumNormParameters
};

struct Work {
  const MatMulCall& call;
  int8_matmul::PackedMatrix matrix;
  norm::Norm x_norm;
  const float* input_factors;  // or null; applied after the norm
  TaskGrid tasks;
  const Adapters& adapters;
  float* max_abs;  // [rows]
  uint8_t* bytes;  // [rows][row_bytes]
  int is_out_of_memory;

  int64_t row_bytes() const { return matrix.num_groups() * int8_matmul::kKr; }
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
    first += begin;
    kernels().int8_quantize(x, work.input_factors, rows, work.call.num_inputs,
                            work.bytes + first * work.row_bytes(), work.max_abs + first);
  };
  normalize_and_quantize(work.x_norm, work.call.x,
                         all.slice(begin, min(kQuantizeTaskRows, all.count - begin)), quantize);
}

void multiply_task(void* data, size_t index) {
  Work& work = *static_cast<Work*>(data);
  const int64_t task = static_cast<int64_t>(index);
  const Rows rows = work.tasks.rows(task);
  const int64_t begin = rows.first - work.call.rows.first;
  const int64_t first = work.tasks.first_panel(task), last = work.tasks.last_panel(task);
  Epilogue epilogue = work.call.epilogue;
  Scratch changes;
  if (!work.adapters.add(rows, first, last, changes, epilogue)) {
    return __atomic_store_n(&work.is_out_of_memory, 1, __ATOMIC_RELAXED);
  }
  kernels().int8_multiply(work.bytes + begin * work.row_bytes(), work.max_abs + begin, rows,
                          work.matrix, epilogue, first, last, work.call.y);
}

struct DynamicInt8MatMul {
  static constexpr const char* kName = "DynamicInt8MatMul";
  static constexpr Parameter kInputs[] = {
      {kFloat}, {kInt8}, {kUInt16}, {kFloat}, {kInt32}, {kFloat, true}, MATMUL_PARAMETERS,
      {kInt8, true}, {kInt32, true}, NORM_PARAMETERS, ADAPTER_PARAMETERS};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static constexpr int kInPlaceInput = kFirstParameter + kResidual;

  MatMulAttributes attributes;
  InputNorm input_norm;
  AdapterAttributes adapter_attributes;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(attributes.read(api, info));
    RETURN_IF_FAILED(input_norm.read(api, info));
    return adapter_attributes.read(api, info);
  }

  Status* run(const Api& api, KernelContext* context) const {
    const void* inputs[kFirstParameter] = {};
    for (size_t index = kWeights; index < kFirstParameter; index++) {
      RETURN_IF_FAILED(input_data(api, context, index, inputs[index]));
    }
    Candidates candidates;
    const Value* value = nullptr;
    RETURN_IF_FAILED(api.Input(context, kCandidates, &value));
    RETURN_IF_FAILED(candidates.read(api, value));
    if (candidates.width) return multiply_only(api, context, candidates, inputs);
    MatMulCall call{};
    RETURN_IF_FAILED(call.read(api, context, attributes, kFirstParameter));
    norm::Norm x_norm;
    RETURN_IF_FAILED(input_norm.norm(api, context, kFirstXNorm, call.num_inputs, x_norm));
    Adapters adapters;
    RETURN_IF_FAILED(
        adapters.read(api, context, adapter_attributes, kFirstAdapter, call, &x_norm));
    Work work{call,
              {static_cast<const int8_t*>(inputs[kWeights]),
               static_cast<const uint16_t*>(inputs[kGroupOrder]),
               static_cast<const float*>(inputs[kScales]),
               static_cast<const int32_t*>(inputs[kZeroPointSums]), call.num_inputs,
               call.num_outputs},
              x_norm,
              static_cast<const float*>(inputs[kInputFactors]),
              TaskGrid(call, kTaskRows, kTaskProducts, kMinRows), adapters, nullptr, nullptr, 0};
    const int64_t num_rows = call.rows.count;
    Scratch scratch;
    void* const memory = scratch.allocate(num_rows * (work.row_bytes() + sizeof(float)));
    if (!memory) return out_of_memory(api);
    work.max_abs = static_cast<float*>(memory);
    work.bytes = reinterpret_cast<uint8_t*>(work.max_abs + num_rows);
    const int64_t num_tasks = adapters.num_tasks() + div_ceil(num_rows, kQuantizeTaskRows);
    RETURN_IF_FAILED(run_tasks(api, context, quantize_task, num_tasks, &work));
    RETURN_IF_FAILED(run_tasks(api, context, multiply_task, work.tasks.count(), &work));
    return work.is_out_of_memory ? out_of_memory(api) : call.normalize(api, context);
  }

 private:
  // Computes the candidates of each row only. `inputs` are those before kFirstParameter.
  Status* multiply_only(const Api& api, KernelContext* context, const Candidates& candidates,
                        const void* const* inputs) const {
    const Value* columns = nullptr;
    const int8_t* column_data = nullptr;
    const float* bias = nullptr;
    Dimensions shape;
    RETURN_IF_FAILED(input_data(api, context, kFirstParameter, bias));
    RETURN_IF_FAILED(api.Input(context, kColumns, &columns));
    if (!columns) return api.CreateStatus(kInvalidArgument, "candidates need columns");
    RETURN_IF_FAILED(dimensions(api, columns, shape));
    RETURN_IF_FAILED(data_of(api, columns, column_data));
    const candidate_matmul::Matrix matrix{column_data,
                                          static_cast<const float*>(inputs[kScales]),
                                          static_cast<const int32_t*>(inputs[kZeroPointSums]),
                                          bias, shape.last()};
    return multiply_candidates(api, context, candidates, attributes, matrix,
                               static_cast<const float*>(inputs[kInputFactors]));
  }
};

}  // namespace

const Operator& dynamic_int8_matmul() { return make_operator<DynamicInt8MatMul>(); }

}  // namespace ort
