// The operators that ONNX Runtime loads from this library: RegisterCustomOps.

#include <stdlib.h>

#include "ort_api.h"
#include "row_int8.h"

namespace {

constexpr int kInvalidArgument = 2, kRuntimeException = 6;  // of a status
// Products in a task, of which a row takes about 10 microseconds and a batch 3.
constexpr int64_t kTaskProducts = 250'000;
constexpr int64_t kMaxTasks = 64;
constexpr int64_t kQuantizeRows = 16;  // of a task

enum Input : size_t { kX, kWeights, kScales, kOffsets, kNumInputs };

constexpr size_t kMaxRank = 8;

struct Dimensions {
  int64_t sizes[kMaxRank];
  size_t rank;
};

// Memory of one run.
class Scratch {
 public:
  explicit Scratch(size_t num_bytes) : data_(malloc(num_bytes)) {}
  ~Scratch() { free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

struct Work {
  const float* x;
  int64_t num_rows;
  row_int8::Matrix matrix;
  uint8_t* bytes;
  float* largest;
  float* y;
  int64_t panels_per_task;
};

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
  row_int8::multiply(work.bytes, work.largest, work.num_rows, work.matrix, first, last, work.y);
}

#define RETURN_IF_FAILED(call)                \
  if (ort::Status* failure = (call); failure) \
  return failure

ort::Status* dimensions(const ort::Api& api, const ort::Value* value, Dimensions& out) {
  ort::Shape* shape = nullptr;
  RETURN_IF_FAILED(api.ShapeOf(value, &shape));
  ort::Status* status = api.Rank(shape, &out.rank);
  if (!status && (out.rank == 0 || out.rank > kMaxRank)) {
    status = api.CreateStatus(kInvalidArgument, "a matrix of 1 to 8 dimensions is wanted");
  }
  if (!status) status = api.Dimensions(shape, out.sizes, out.rank);
  api.Release(shape);
  return status;
}

ort::Status* run(const ort::Api& api, ort::KernelContext* context) {
  const ort::Value* values[kNumInputs];
  void* data[kNumInputs];
  for (size_t index = 0; index < kNumInputs; index++) {
    RETURN_IF_FAILED(api.Input(context, index, &values[index]));
    RETURN_IF_FAILED(api.Data(values[index], &data[index]));
  }
  Dimensions shape, outputs;
  RETURN_IF_FAILED(dimensions(api, values[kX], shape));
  RETURN_IF_FAILED(dimensions(api, values[kScales], outputs));

  Work work{};
  work.x = static_cast<const float*>(data[kX]);
  work.matrix = {static_cast<const int8_t*>(data[kWeights]),
                 static_cast<const float*>(data[kScales]),
                 static_cast<const int32_t*>(data[kOffsets]), shape.sizes[shape.rank - 1],
                 outputs.sizes[0]};
  work.num_rows = 1;
  for (size_t axis = 0; axis + 1 < shape.rank; axis++) work.num_rows *= shape.sizes[axis];
  shape.sizes[shape.rank - 1] = work.matrix.num_outputs;
  ort::Value* output = nullptr;
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

// A kernel has no state of its own but the interface.
ort::Status* create(const ort::Operator*, ort::Table table, const ort::KernelInfo*, void** out) {
  *out = const_cast<void*>(static_cast<const void*>(table));
  return nullptr;
}

ort::Status* compute(void* kernel, ort::KernelContext* context) {
  return run(ort::Api(static_cast<ort::Table>(kernel)), context);
}

const ort::Operator& row_int8_matmul() {
  static const ort::Operator op = [] {
    ort::Operator made{};
    made.version = ort::kVersion;
    made.name = [](const ort::Operator*) { return "RowInt8MatMul"; };
    made.provider = [](const ort::Operator*) -> const char* { return nullptr; };
    made.num_inputs = [](const ort::Operator*) -> size_t { return kNumInputs; };
    made.input_type = [](const ort::Operator*, size_t index) {
      constexpr ort::ElementType types[] = {ort::kFloat, ort::kInt8, ort::kFloat, ort::kInt32};
      return types[index];
    };
    made.num_outputs = [](const ort::Operator*) -> size_t { return 1; };
    made.output_type = [](const ort::Operator*, size_t) { return ort::kFloat; };
    made.input_characteristic = [](const ort::Operator*, size_t) { return 0; };
    made.output_characteristic = [](const ort::Operator*, size_t) { return 0; };
    made.input_memory = [](const ort::Operator*, size_t) { return 0; };
    made.variadic_input_min = [](const ort::Operator*) { return 1; };
    made.variadic_input_same = [](const ort::Operator*) { return 1; };
    made.variadic_output_min = [](const ort::Operator*) { return 1; };
    made.variadic_output_same = [](const ort::Operator*) { return 1; };
    made.create_checked = create;
    made.compute_checked = compute;
    made.destroy = [](void*) {};
    made.start_version = [](const ort::Operator*) { return 1; };
    made.end_version = [](const ort::Operator*) { return INT32_MAX; };
    return made;
  }();
  return op;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int triune_kernels_run() {
  return row_int8::runs_here() ? 1 : 0;
}

// 1 where they are faster than ONNX Runtime's own operators.
__attribute__((visibility("default"))) int triune_kernels_are_worthwhile() {
  return row_int8::runs_here() && !row_int8::has_vnni() ? 1 : 0;
}

// Called by ONNX Runtime when the library is registered.
__attribute__((visibility("default"))) ort::Status* RegisterCustomOps(ort::Session* options,
                                                                      const ort::ApiBase* base) {
  const ort::Table table = base->get_api(ort::kVersion);
  if (!table) return nullptr;
  const ort::Api api(table);
  static ort::Domain* domain = nullptr;
  if (!domain) {
    RETURN_IF_FAILED(api.CreateDomain("triune", &domain));
    RETURN_IF_FAILED(api.Add(domain, &row_int8_matmul()));
  }
  return api.Add(options, domain);
}
}
