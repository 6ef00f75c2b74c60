#include "matmul_call.h"

#include <string.h>

namespace ort {
namespace {

constexpr int64_t kMaxPanelTasks = 64;
constexpr int64_t kPanelsOfTile = 2;  // that kernels multiply by together, or one

template <typename T>
Status* data_of(const Api& api, const Value* value, const T*& out) {
  void* data = nullptr;
  if (value) RETURN_IF_FAILED(api.Data(value, &data));
  out = static_cast<const T*>(data);
  return nullptr;
}

// The places of the rows that count, of [batch, length], and their number.
int64_t list_rows(const int32_t* lengths, int64_t batch, int64_t length, int32_t* places) {
  int64_t count = 0;
  for (int64_t b = 0; b < batch; b++) {
    for (int64_t i = 0; i < min(length, lengths[b]); i++) {
      places[count++] = static_cast<int32_t>(b * length + i);
    }
  }
  return count;
}

}  // namespace

Status* Product::read(const Api& api, KernelContext* context, size_t first) {
  enum : size_t { kSettings, kBias, kRest, kLengths };
  const Value *value = nullptr, *inputs[kNumProductInputs];
  for (size_t i = 0; i < kNumProductInputs; i++) {
    RETURN_IF_FAILED(api.Input(context, first + i, &inputs[i]));
  }
  Dimensions shape;
  const int32_t *settings = nullptr, *lengths = nullptr;
  RETURN_IF_FAILED(api.Input(context, 0, &value));
  RETURN_IF_FAILED(dimensions(api, value, shape));
  RETURN_IF_FAILED(data_of(api, value, x));
  RETURN_IF_FAILED(data_of(api, inputs[kSettings], settings));
  RETURN_IF_FAILED(data_of(api, inputs[kBias], epilogue.bias));
  RETURN_IF_FAILED(data_of(api, inputs[kRest], epilogue.rest));
  RETURN_IF_FAILED(data_of(api, inputs[kLengths], lengths));
  num_inputs = shape.last();
  num_outputs = settings[0];
  epilogue.activation = static_cast<Activation>(settings[1]);
  form = static_cast<weights::Form>(settings[2]);
  rows = {nullptr, 0, shape.rows()};

  const int64_t width = epilogue.width_of(num_outputs);
  shape.sizes[shape.rank - 1] = width;
  Value* output = nullptr;
  void* data = nullptr;
  RETURN_IF_FAILED(api.Output(context, 0, shape.sizes, shape.rank, &output));
  RETURN_IF_FAILED(api.Data(output, &data));
  y = static_cast<float*>(data);
  if (!lengths || shape.rank != 3) return nullptr;
  const int64_t batch = shape.sizes[0], length = shape.sizes[1];
  int64_t num_absent = 0;
  for (int64_t b = 0; b < batch; b++) {
    const int64_t count = max(0, length - lengths[b]);
    memset(y + ((b + 1) * length - count) * width, 0, count * width * sizeof(float));
    num_absent += count;
  }
  if (!num_absent) return nullptr;
  int32_t* const list = static_cast<int32_t*>(places.allocate(rows.count * sizeof(int32_t)));
  if (!list) return api.CreateStatus(kRuntimeException, "no memory");
  rows = {list, 0, list_rows(lengths, batch, length, list)};
  return nullptr;
}

Tiles::Tiles(const Product& product, int64_t rows_of_task, int64_t num_products, int64_t least_rows)
    : rows_(product.rows),
      num_panels_(div_ceil(product.num_outputs, kPanel)),
      rows_of_task_(rows_of_task),
      num_row_tasks_(div_ceil(product.rows.count, rows_of_task)) {
  const int64_t num_rows = max(least_rows, min(rows_of_task, rows_.count));
  const int64_t of_panel = num_rows * product.num_inputs * kPanel;
  const int64_t worthwhile = div_ceil(num_products, max(1, of_panel));
  const int64_t least = max(worthwhile, div_ceil(num_panels_, kMaxPanelTasks));
  panels_of_task_ = min(num_panels_, div_ceil(max(1, least), kPanelsOfTile) * kPanelsOfTile);
}

}  // namespace ort
