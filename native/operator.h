// What the operators share: shapes, and the making of one that the runtime takes.
#pragma once

#include <stdlib.h>

#include "integers.h"
#include "ort_api.h"
#include "scratch.h"

namespace ort {

constexpr int kInvalidArgument = 2, kRuntimeException = 6;  // of a status
constexpr size_t kMaxRank = 8;

#define RETURN_IF_FAILED(call)                     \
  if (::ort::Status* failure = (call); failure) \
  return failure

struct Dimensions {
  int64_t sizes[kMaxRank];
  size_t rank;

  int64_t last() const { return sizes[rank - 1]; }
  // The product of all but the last.
  int64_t rows() const {
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
    status = api.CreateStatus(kInvalidArgument, "1 to 8 dimensions are wanted");
  }
  if (!status) status = api.Dimensions(shape, out.sizes, out.rank);
  api.Release(shape);
  return status;
}

struct Parameter {
  ElementType type;
  bool is_optional = false;
};

// Of a node without attributes.
struct Stateless {
  Status* create(const Api&, const KernelInfo*) const { return nullptr; }
};

// Runs task(data, i) for i below `count`, by threads if there are several.
inline Status* run_tasks(const Api& api, const KernelContext* context,
                         void (*task)(void*, size_t), int64_t count, void* data) {
  if (count > 1) return api.ParallelFor(context, task, count, data);
  if (count == 1) task(data, 0);
  return nullptr;
}

// Definition has: kName; kInputs and kOutputs, arrays of Parameter.
template <typename Definition>
Operator described() {
  Operator made{};
  made.version = kVersion;
  made.name = [](const Operator*) { return Definition::kName; };
  made.provider = [](const Operator*) -> const char* { return nullptr; };
  made.num_inputs = [](const Operator*) { return sizeof(Definition::kInputs) / sizeof(Parameter); };
  made.input_type = [](const Operator*, size_t index) { return Definition::kInputs[index].type; };
  made.num_outputs = [](const Operator*) {
    return sizeof(Definition::kOutputs) / sizeof(Parameter);
  };
  made.output_type = [](const Operator*, size_t index) {
    return Definition::kOutputs[index].type;
  };
  made.input_characteristic = [](const Operator*, size_t index) {
    return Definition::kInputs[index].is_optional ? 1 : 0;
  };
  made.output_characteristic = [](const Operator*, size_t index) {
    return Definition::kOutputs[index].is_optional ? 1 : 0;
  };
  made.input_memory = [](const Operator*, size_t) { return 0; };
  made.variadic_input_min = [](const Operator*) { return 1; };
  made.variadic_input_same = [](const Operator*) { return 1; };
  made.variadic_output_min = [](const Operator*) { return 1; };
  made.variadic_output_same = [](const Operator*) { return 1; };
  made.start_version = [](const Operator*) { return 1; };
  made.end_version = [](const Operator*) { return INT32_MAX; };
  return made;
}

// A node's state is a Definition: Status* create(const Api&, const KernelInfo*) takes it from the
// node's attributes, and Status* run(const Api&, KernelContext*) const runs it.
template <typename Definition>
const Operator& operator_of() {
  struct Kernel {
    Table table;
    Definition definition;
  };
  static const Operator op = [] {
    Operator made = described<Definition>();
    made.create_checked = [](const Operator*, Table table, const KernelInfo* info,
                             void** out) -> Status* {
      const Api api(table);
      Kernel* kernel = static_cast<Kernel*>(calloc(1, sizeof(Kernel)));
      if (!kernel) return api.CreateStatus(kRuntimeException, "no memory");
      kernel->table = table;
      Status* status = kernel->definition.create(api, info);
      if (status) {
        free(kernel);
      } else {
        *out = kernel;
      }
      return status;
    };
    made.compute_checked = [](void* kernel, KernelContext* context) {
      Kernel* made = static_cast<Kernel*>(kernel);
      return made->definition.run(Api(made->table), context);
    };
    made.destroy = [](void* kernel) { free(kernel); };
    return made;
  }();
  return op;
}

}  // namespace ort
