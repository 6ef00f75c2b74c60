#include "int8_matmul_operator.h"

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
  kFirstXNorm
};

struct Work {
  const MatMulCall& call;
  int8_matmul::PackedMatrix matrix;
  norm::Norm x_norm;
  const float* input_factors;  // or null; applied after the norm
  TaskGrid tasks;
  float* max_abs;  // [rows]
  uint8_t* bytes;  // [rows][row_bytes]

  int64_t row_bytes() const { return matrix.num_groups() * int8_matmul::kKr; }
};

void quantize_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t begin = static_cast<int64_t>(index) * kQuantizeTaskRows;
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
  const Work& work = *static_cast<Work*>(data);
  const int64_t task = static_cast<int64_t>(index);
  const Rows rows = work.tasks.rows(task);
  const int64_t begin = rows.first - work.call.rows.first;
  kernels().int8_multiply(work.bytes + begin * work.row_bytes(), work.max_abs + begin, rows,
                          work.matrix, work.call.epilogue, work.tasks.first_panel(task),
                          work.tasks.last_panel(task), work.call.y);
}

struct DynamicInt8MatMul {
  static constexpr const char* kName = "DynamicInt8MatMul";
  static constexpr Parameter kInputs[] = {
      {kFloat}, {kInt8}, {kUInt16}, {kFloat}, {kInt32}, {kFloat, true}, MATMUL_PARAMETERS,
      {kInt8, true}, {kInt32, true}, NORM_PARAMETERS};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static constexpr int kInPlaceInput = kFirstParameter + kResidual;

  MatMulAttributes attributes;
  InputNorm input_norm;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(attributes.read(api, info));
    return input_norm.read(api, info);
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
    Work work{call,
              {static_cast<const int8_t*>(inputs[kWeights]),
               static_cast<const uint16_t*>(inputs[kGroupOrder]),
               static_cast<const float*>(inputs[kScales]),
               static_cast<const int32_t*>(inputs[kZeroPointSums]), call.num_inputs,
               call.num_outputs},
              x_norm,
              static_cast<const float*>(inputs[kInputFactors]),
              TaskGrid(call, kTaskRows, kTaskProducts, kMinRows), nullptr, nullptr};
    const int64_t num_rows = call.rows.count;
    Scratch scratch;
    void* const memory = scratch.allocate(num_rows * (work.row_bytes() + sizeof(float)));
    if (!memory) return out_of_memory(api);
    work.max_abs = static_cast<float*>(memory);
    work.bytes = reinterpret_cast<uint8_t*>(work.max_abs + num_rows);
    RETURN_IF_FAILED(
        run_tasks(api, context, quantize_task, div_ceil(num_rows, kQuantizeTaskRows), &work));
    RETURN_IF_FAILED(run_tasks(api, context, multiply_task, work.tasks.count(), &work));
    return call.normalize(api, context);
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
