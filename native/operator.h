// Shared by all custom operators: shapes, statuses, tasks on ONNX Runtime's threads, and
// make_operator(), which turns a C++ definition into the function table that ONNX Runtime takes.
#pragma once

#include <stdlib.h>

#include "integers.h"
#include "ort_api.h"
#include "scratch.h"

namespace ort {

constexpr int kInvalidArgument = 2, kRuntimeException = 6;  // OrtErrorCode
constexpr int kHostInput = -2;  // OrtMemTypeCPUInput
constexpr size_t kMaxRank = 8;

#define RETURN_IF_FAILED(call)                     \
  if (::ort::Status* failure = (call); failure) \
  return failure

inline Status* out_of_memory(const Api& api) {
  return api.CreateStatus(kRuntimeException, "out of memory");
}

struct Dimensions {
  int64_t sizes[kMaxRank];
  size_t rank;

  int64_t last() const { return sizes[rank - 1]; }
  // The product of all axes but the last.
  int64_t num_rows() const {
    int64_t product = 1;
    for (size_t axis = 0; axis + 1 < rank; axis++) product *= sizes[axis];
    return product;
  }
};

inline Status* dimensions(const Api& api, const Value* value, Dimensions& out) {
  Shape* shape = nullptr;
  RETURN_IF_FAILED(api.ShapeOf(value, &shape));
  Status* status = api.Rank(shape, &out.rank);
  if (!status && (out.rank == 0 || out.rank > kMaxRank)) {
    status = api.CreateStatus(kInvalidArgument, "a tensor must have 1 to 8 dimensions");
  }
  if (!status) status = api.Dimensions(shape, out.sizes, out.rank);
  api.Release(shape);
  return status;
}

// The data of `value`, or null if the optional `value` is absent.
template <typename T>
Status* data_of(const Api& api, const Value* value, const T*& out) {
  void* data = nullptr;
  if (value) RETURN_IF_FAILED(api.Data(value, &data));
  out = static_cast<const T*>(data);
  return nullptr;
}

// The same for the input at `index`.
template <typename T>
Status* input_data(const Api& api, const KernelContext* context, size_t index, const T*& out) {
  const Value* value = nullptr;
  RETURN_IF_FAILED(api.Input(context, index, &value));
  return data_of(api, value, out);
}

// Allocates the output at `index`; its data, or null if the node omits it.
template <typename T>
Status* output_data(const Api& api, KernelContext* context, size_t index, const int64_t* sizes,
                    size_t rank, T*& out) {
  Value* value = nullptr;
  void* data = nullptr;
  RETURN_IF_FAILED(api.Output(context, index, sizes, rank, &value));
  if (value) RETURN_IF_FAILED(api.Data(value, &data));
  out = static_cast<T*>(data);
  return nullptr;
}

// An input or output in an operator's signature.
struct Parameter {
  ElementType type;
  bool is_optional = false;
  bool is_on_host = false;  // an input that is in host memory, whatever the device
};

// Runs task(data, i) for i below `count`, on the session's threads if there is more than one.
inline Status* run_tasks(const Api& api, const KernelContext* context,
                         void (*task)(void*, size_t), int64_t count, void* data) {
  if (count > 1) return api.ParallelFor(context, task, count, data);
  if (count == 1) task(data, 0);
  return nullptr;
}

// Builds the function table of an operator from its Definition; see make_operator().
template <typename Definition>
Operator make_signature() {
  Operator op{};
  op.version = kVersion;
  op.name = [](const Operator*) { return Definition::kName; };
  op.provider = [](const Operator*) -> const char* {
    if constexpr (requires { Definition::kProvider; }) return Definition::kProvider;
    return nullptr;
  };
  op.num_inputs = [](const Operator*) { return sizeof(Definition::kInputs) / sizeof(Parameter); };
  op.input_type = [](const Operator*, size_t index) { return Definition::kInputs[index].type; };
  op.num_outputs = [](const Operator*) { return sizeof(Definition::kOutputs) / sizeof(Parameter); };
  op.output_type = [](const Operator*, size_t index) { return Definition::kOutputs[index].type; };
  op.input_characteristic = [](const Operator*, size_t index) {
    return Definition::kInputs[index].is_optional ? 1 : 0;
  };
  op.output_characteristic = [](const Operator*, size_t index) {
    return Definition::kOutputs[index].is_optional ? 1 : 0;
  };
  op.input_memory = [](const Operator*, size_t index) {
    return Definition::kInputs[index].is_on_host ? kHostInput : 0;
  };
  op.variadic_input_min = [](const Operator*) { return 1; };
  op.variadic_input_same = [](const Operator*) { return 1; };
  op.variadic_output_min = [](const Operator*) { return 1; };
  op.variadic_output_same = [](const Operator*) { return 1; };
  op.start_version = [](const Operator*) { return 1; };
  op.end_version = [](const Operator*) { return INT32_MAX; };
  if constexpr (requires { Definition::kInPlaceInput; }) {
    op.may_in_place = [](int** inputs, int** outputs) -> size_t {
      static int input = Definition::kInPlaceInput, output = 0;
      *inputs = &input, *outputs = &output;
      return 1;
    };
    op.release_may_in_place = [](int*, int*) {};
  }
  return op;
}

// The operator of a Definition, which has: kName; kInputs and kOutputs, arrays of Parameter;
// Status* create(const Api&, const KernelInfo*), which reads a node's attributes into members;
// Status* run(const Api&, KernelContext*) const. Each node has a zero-initialized Definition. With
// kInPlaceInput, the output may share that input's memory, if no other node reads it later: run()
// must read each element before it overwrites it. kProvider names an execution provider other than
// the CPU's.
template <typename Definition>
const Operator& make_operator() {
  struct Kernel {
    Table table;
    Definition definition;
  };
  static const Operator op = [] {
    Operator made = make_signature<Definition>();
    made.create_checked = [](const Operator*, Table table, const KernelInfo* info,
                             void** out) -> Status* {
      const Api api(table);
      Kernel* kernel = static_cast<Kernel*>(calloc(1, sizeof(Kernel)));
      if (!kernel) return out_of_memory(api);
      kernel->table = table;
      Status* status = kernel->definition.create(api, info);
      if (status) {
        free(kernel);
      } else {
        *out = kernel;
      }
      return status;
    };
    made.compute_checked = [](void* state, KernelContext* context) {
      Kernel* kernel = static_cast<Kernel*>(state);
      return kernel->definition.run(Api(kernel->table), context);
    };
    made.destroy = [](void* kernel) { free(kernel); };
    return made;
  }();
  return op;
}

// Registers the library's operators with a session, in the domain that all libraries share.
template <size_t Count>
Status* register_operators(Session* options, const ApiBase* base,
                           const Operator* const (&operators)[Count]) {
  const Table table = base->get_api(kVersion);
  if (!table) return nullptr;
  const Api api(table);
  static Domain* domain = nullptr;
  if (!domain) {
    RETURN_IF_FAILED(api.CreateDomain("triune", &domain));
    for (const Operator* op : operators) RETURN_IF_FAILED(api.Add(domain, op));
  }
  return api.Add(options, domain);
}

}  // namespace ort
