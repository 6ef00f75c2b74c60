#include "matmul_call.h"

#include <string.h>

namespace ort {
namespace {

constexpr int64_t kMaxPanelTasks = 64;
constexpr int64_t kMaxNrPanels = 2;  // of any micro-kernel

// Fails unless the optional `residual` has the shape of y.
Status* check_residual(const Api& api, const Value* residual, const Dimensions& y) {
  if (!residual) return nullptr;
  Dimensions shape;
  RETURN_IF_FAILED(dimensions(api, residual, shape));
  const bool has_shape =
      shape.rank == y.rank && !memcmp(shape.sizes, y.sizes, y.rank * sizeof(*y.sizes));
  return has_shape ? nullptr : api.CreateStatus(kInvalidArgument, "residual must be shaped as y");
}

// Fails unless `value`, whose data is `lengths`, has a length for each text of a batch.
Status* check_lengths(const Api& api, const Value* value, const int32_t* lengths, int64_t batch) {
  Dimensions shape;
  RETURN_IF_FAILED(dimensions(api, value, shape));
  bool is_valid = shape.rank == 1 && shape.last() == batch;
  for (int64_t b = 0; is_valid && b < batch; b++) is_valid = lengths[b] >= 0;
  return is_valid ? nullptr
                  : api.CreateStatus(kInvalidArgument, "lengths must be [batch], not negative");
}

// Writes the indices of rows that are not padding; returns their number.
int64_t list_rows(const int32_t* lengths, int64_t batch, int64_t length, int32_t* indices) {
  int64_t count = 0;
  for (int64_t b = 0; b < batch; b++) {
    for (int64_t i = 0; i < min(length, lengths[b]); i++) {
      indices[count++] = static_cast<int32_t>(b * length + i);
    }
  }
  return count;
}

}  // namespace

Status* MatMulAttributes::read(const Api& api, const KernelInfo* info) {
  int64_t number = 0;
  RETURN_IF_FAILED(api.Attribute(info, "num_inputs", &num_inputs));
  RETURN_IF_FAILED(api.Attribute(info, "num_outputs", &num_outputs));
  RETURN_IF_FAILED(api.Attribute(info, "activation", &number));
  if (num_outputs < 1) return api.CreateStatus(kInvalidArgument, "num_outputs must be positive");
  if (number < 0 || number > static_cast<int64_t>(Activation::kSiluGate)) {
    return api.CreateStatus(kInvalidArgument, "activation must be 0 to 3");
  }
  activation = static_cast<Activation>(number);
  return y_norm.read(api, info, "y_norm_epsilon", "y_norm_is_centered");
}

Status* MatMulAttributes::check_x(const Api& api, const Dimensions& x) const {
  if (x.last() == num_inputs) return nullptr;
  return api.CreateStatus(kInvalidArgument, "the rows of x must have num_inputs elements");
}

Status* read_weight_format(const Api& api, const KernelInfo* info, WeightFormat first,
                           WeightFormat last, WeightFormat& out) {
  int64_t number = 0;
  RETURN_IF_FAILED(api.Attribute(info, "weight_format", &number));
  out = static_cast<WeightFormat>(number);
  if (first <= out && out <= last) return nullptr;
  return api.CreateStatus(kInvalidArgument, "the operator does not support this weight_format");
}

Status* MatMulCall::read(const Api& api, KernelContext* context,
                         const MatMulAttributes& attributes, size_t first) {
  const Value *value = nullptr, *inputs[kFirstYNorm];
  for (size_t i = 0; i < kFirstYNorm; i++) {
    RETURN_IF_FAILED(api.Input(context, first + i, &inputs[i]));
  }
  Dimensions shape;
  const int32_t* lengths = nullptr;
  RETURN_IF_FAILED(api.Input(context, 0, &value));
  RETURN_IF_FAILED(dimensions(api, value, shape));
  RETURN_IF_FAILED(data_of(api, value, x));
  RETURN_IF_FAILED(data_of(api, inputs[kBias], epilogue.bias));
  RETURN_IF_FAILED(data_of(api, inputs[kResidual], epilogue.residual));
  RETURN_IF_FAILED(data_of(api, inputs[kLengths], lengths));
  RETURN_IF_FAILED(attributes.check_x(api, shape));
  num_inputs = attributes.num_inputs;
  num_outputs = attributes.num_outputs;
  epilogue.activation = attributes.activation;
  num_rows_ = shape.num_rows();
  rows = {nullptr, 0, num_rows_};

  RETURN_IF_FAILED(attributes.y_norm.norm(api, context, first + kFirstYNorm,
                                        epilogue.width_of(num_outputs), y_norm));
  shape.sizes[shape.rank - 1] = epilogue.width_of(num_outputs);
  RETURN_IF_FAILED(check_residual(api, inputs[kResidual], shape));
  RETURN_IF_FAILED(output_data(api, context, 0, shape.sizes, shape.rank, y));
  if (!lengths || shape.rank != 3) return nullptr;
  RETURN_IF_FAILED(check_lengths(api, inputs[kLengths], lengths, shape.sizes[0]));
  return skip_padding(api, lengths, shape.sizes[0], shape.sizes[1]);
}

Status* MatMulCall::normalize(const Api& api, const KernelContext* context) const {
  return y_norm.scale ? normalize_rows(api, context, y_norm, y, num_rows_, y) : nullptr;
}

Status* MatMulCall::skip_padding(const Api& api, const int32_t* lengths, int64_t batch,
                                 int64_t length) {
  const int64_t width = epilogue.width_of(num_outputs);
  int64_t num_padding = 0;
  for (int64_t b = 0; b < batch; b++) {
    const int64_t count = max(0, length - lengths[b]);
    memset(y + ((b + 1) * length - count) * width, 0, count * width * sizeof(float));
    num_padding += count;
  }
  if (!num_padding) return nullptr;
  int32_t* const list = static_cast<int32_t*>(indices.allocate(rows.count * sizeof(int32_t)));
  if (!list) return out_of_memory(api);
  rows = {list, 0, list_rows(lengths, batch, length, list)};
  return nullptr;
}

TaskGrid::TaskGrid(const MatMulCall& call, int64_t rows_per_task, int64_t min_products,
                   int64_t min_rows)
    : rows_(call.rows),
      num_panels_(div_ceil(call.num_outputs, kPanelWidth)),
      rows_per_task_(rows_per_task) {
  const int64_t num_rows = max(min_rows, min(rows_per_task, rows_.count));
  const int64_t products_per_panel = num_rows * call.num_inputs * kPanelWidth;
  const int64_t worthwhile = div_ceil(min_products, max(1, products_per_panel));
  const int64_t min_panels = max(worthwhile, div_ceil(num_panels_, kMaxPanelTasks));
  panels_per_task_ = min(num_panels_, round_up(max(1, min_panels), kMaxNrPanels));
  num_panel_tasks_ = div_ceil(num_panels_, panels_per_task_);
}

}  // namespace ort
