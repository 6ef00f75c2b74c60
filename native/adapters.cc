#include "adapters.h"

#include <string.h>

#include "kernels.h"

namespace ort {
namespace {

constexpr int64_t kTaskRows = 96;
constexpr int64_t kTaskProducts = 24'000;  // multiply-adds: about 2 microseconds

bool are_zeros(const int32_t* values, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    if (values[i]) return false;
  }
  return true;
}

}  // namespace

Status* AdapterAttributes::read(const Api& api, const KernelInfo* info) {
  int64_t a = 0, b = 0;
  RETURN_IF_FAILED(api.Attribute(info, "adapter_rank", &rank));
  RETURN_IF_FAILED(api.Attribute(info, "adapter_a_format", &a));
  RETURN_IF_FAILED(api.Attribute(info, "adapter_b_format", &b));
  a_format = static_cast<WeightFormat>(a), b_format = static_cast<WeightFormat>(b);
  const auto is_known = [](WeightFormat format) {
    return WeightFormat::kFloat32 <= format && format <= WeightFormat::kBFloat16;
  };
  if (rank >= 0 && rank % kPanelWidth == 0 && is_known(a_format) && is_known(b_format)) {
    return nullptr;
  }
  return api.CreateStatus(kInvalidArgument, "adapters need a rank in multiples of 16, and formats");
}

Status* Adapters::read(const Api& api, const KernelContext* context,
                       const AdapterAttributes& attributes, size_t first, const MatMulCall& call,
                       const norm::Norm* x_norm) {
  num_groups_ = 0;
  if (!attributes.rank) return nullptr;
  constexpr size_t kNumInputs = 4;
  const Value* inputs[kNumInputs];
  Dimensions shapes[kNumInputs];
  const int32_t* adapters = nullptr;
  for (size_t i = 0; i < kNumInputs; i++) {
    RETURN_IF_FAILED(api.Input(context, first + i, &inputs[i]));
    if (!inputs[i]) return api.CreateStatus(kInvalidArgument, "an input of the adapters is missing");
    RETURN_IF_FAILED(dimensions(api, inputs[i], shapes[i]));
    if (i) continue;
    RETURN_IF_FAILED(data_of(api, inputs[i], adapters));
    if (shapes[i].rank == 1 && are_zeros(adapters, shapes[i].sizes[0])) return nullptr;
  }
  RETURN_IF_FAILED(data_of(api, inputs[1], a_));
  RETURN_IF_FAILED(data_of(api, inputs[2], b_));
  const int32_t* blocks = nullptr;
  RETURN_IF_FAILED(data_of(api, inputs[3], blocks));
  blocks_ = reinterpret_cast<const AdapterBlock*>(blocks);
  call_ = &call, x_norm_ = x_norm && x_norm->scale ? x_norm : nullptr, attributes_ = attributes;
  const int64_t num_adapters = shapes[1].sizes[0];
  constexpr int64_t kBlockFields = sizeof(AdapterBlock) / sizeof(int32_t);
  const bool fits =
      shapes[0].rank == 1 && shapes[1].rank == 2 && shapes[2].rank == 2 &&
      shapes[2].sizes[0] == num_adapters && shapes[3].rank == 2 &&
      shapes[3].last() == kBlockFields &&
      shapes[1].last() == weight_format::panel_bytes(attributes.a_format, call.num_inputs) *
                              attributes.rank / kPanelWidth;
  if (!fits) return api.CreateStatus(kInvalidArgument, "the adapters do not fit the matrix");
  num_blocks_ = shapes[3].sizes[0], b_bytes_ = shapes[2].last();
  RETURN_IF_FAILED(check_blocks(api, b_bytes_));
  return find_groups(api, adapters, shapes[0].sizes[0], num_adapters);
}

Status* Adapters::check_blocks(const Api& api, int64_t num_bytes) const {
  const bool is_gated = call_->epilogue.is_gated();
  const int64_t num_panels = div_ceil(call_->num_outputs, kPanelWidth);
  bool fits = true;
  for (int64_t i = 0; i < num_blocks_ && fits; i++) {
    const AdapterBlock& block = blocks_[i];
    const bool is_half = block.placement != adapters::Placement::kPanels;
    const bool has_placement = !is_half || (is_gated && block.placement <= adapters::Placement::kGated &&
                                            block.placement >= adapters::Placement::kPanels);
    fits = has_placement && block.first_rank >= 0 && block.num_ranks > 0 &&
           int64_t{block.first_rank} + block.num_ranks <= attributes_.rank &&
           block.first_panel >= 0 && block.num_panels >= 0 &&
           (int64_t{block.first_panel} + block.num_panels) * (is_half ? 2 : 1) <= num_panels;
    num_bytes -= weight_format::panel_bytes(attributes_.b_format, block.num_ranks) * block.num_panels;
  }
  if (fits && !num_bytes) return nullptr;
  return api.CreateStatus(kInvalidArgument, "the blocks of the adapters do not fit the matrix");
}

Status* Adapters::find_groups(const Api& api, const int32_t* adapters, int64_t count,
                              int64_t num_adapters) {
  for (int64_t i = 0; i < count; i++) {
    if (adapters[i] < 0 || adapters[i] > num_adapters) {
      return api.CreateStatus(kInvalidArgument, "a row has an adapter that does not exist");
    }
  }
  const int64_t num_rows = call_->num_rows();
  if (count ? num_rows % count : num_rows) {
    return api.CreateStatus(kInvalidArgument, "adapters must be [n], n dividing the rows");
  }
  const Rows& rows = call_->rows;
  if (!rows.count) return nullptr;
  const int64_t rows_per_adapter = num_rows / count, rank = attributes_.rank;
  const int64_t max_groups = min(num_adapters, count);
  const int64_t group_bytes = round_up(max_groups * static_cast<int64_t>(sizeof(Group)), 64);
  const int64_t product_bytes = rows.count * rank * static_cast<int64_t>(sizeof(float));
  char* const memory = static_cast<char*>(
      memory_.allocate(group_bytes + product_bytes + rows.count * sizeof(int32_t)));
  if (!memory) return out_of_memory(api);
  groups_ = reinterpret_cast<Group*>(memory);
  products_ = reinterpret_cast<float*>(memory + group_bytes);
  positions_ = reinterpret_cast<int32_t*>(memory + group_bytes + product_bytes);
  int64_t num_positions = 0, longest = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t adapter = adapters[i];
    bool is_listed = !adapter;
    for (int64_t g = 0; g < num_groups_ && !is_listed; g++) {
      is_listed = groups_[g].adapter == adapter - 1;
    }
    if (is_listed) continue;
    const int64_t begin = num_positions;
    for (int64_t position = 0; position < rows.count; position++) {
      if (adapters[rows[position] / rows_per_adapter] == adapter) {
        positions_[num_positions++] = static_cast<int32_t>(position);
      }
    }
    if (num_positions == begin) continue;  // all of its rows are padding
    groups_[num_groups_++] = {adapter - 1, begin, num_positions};
    longest = max(longest, num_positions - begin);
  }
  num_row_blocks_ = div_ceil(longest, kTaskRows);
  const int64_t num_panels = rank / kPanelWidth;
  const int64_t products = min(longest, kTaskRows) * call_->num_inputs * kPanelWidth;
  panels_per_task_ = min(num_panels, div_ceil(kTaskProducts, max(1, products)));
  tasks_per_group_ = num_row_blocks_ * div_ceil(num_panels, panels_per_task_);
  return nullptr;
}

matmul::PackedMatrix Adapters::matrix_of(const uint8_t* data, WeightFormat format,
                                         int64_t num_inputs, int64_t num_outputs,
                                         int64_t adapter) const {
  const int64_t num_panels = div_ceil(num_outputs, kPanelWidth);
  const int64_t bytes = weight_format::panel_bytes(format, num_inputs) * num_panels;
  return {data + adapter * bytes, format, num_inputs, num_outputs};
}

bool Adapters::run_task(int64_t index) const {
  const Group& group = groups_[index / tasks_per_group_];
  const int64_t in_group = index % tasks_per_group_;
  const int64_t first = group.begin + in_group % num_row_blocks_ * kTaskRows;
  const int64_t count = min(kTaskRows, group.end - first);
  if (count <= 0) return true;
  const int64_t num_inputs = call_->num_inputs, rank = attributes_.rank;
  const auto matrix = matrix_of(a_, attributes_.a_format, num_inputs, rank, group.adapter);
  const int64_t begin = in_group / num_row_blocks_ * panels_per_task_;
  const int64_t end = min(begin + panels_per_task_, rank / kPanelWidth);
  const int64_t x_floats = round_up(count * num_inputs, kPanelWidth);
  Scratch scratch;
  float* const x = static_cast<float*>(
      scratch.allocate((x_floats + count * rank) * sizeof(float)));
  if (!x) return false;
  float* const y = x + x_floats;
  for (int64_t i = 0; i < count; i++) {
    const float* const row = call_->x + call_->rows[positions_[first + i]] * num_inputs;
    if (x_norm_) {
      kernels().normalize(*x_norm_, row, 1, x + i * num_inputs);
    } else {
      memcpy(x + i * num_inputs, row, num_inputs * sizeof(float));
    }
  }
  memset(y, 0, count * rank * sizeof(float));
  kernels().adapter_multiply({x, num_inputs, y + begin * kPanelWidth, rank},
                             Rows{nullptr, 0, count}, matrix, begin, end,
                             adapters::Placement::kPanels);
  const int64_t column = begin * kPanelWidth, width = (end - begin) * kPanelWidth;
  for (int64_t i = 0; i < count; i++) {
    memcpy(products_ + positions_[first + i] * rank + column, y + i * rank + column,
           width * sizeof(float));
  }
  return true;
}

bool Adapters::add(const Rows& rows, int64_t first_panel, int64_t last_panel, Scratch& scratch,
                   Epilogue& epilogue) const {
  if (!num_groups_) return true;
  const int64_t rank = attributes_.rank, width = (last_panel - first_panel) * kPanelWidth;
  const int64_t size = rows.count * width;
  float* const changes = static_cast<float*>(scratch.allocate(size * sizeof(float)));
  if (!changes) return false;
  memset(changes, 0, size * sizeof(float));
  for (int64_t g = 0; g < num_groups_; g++) {
    const Group& group = groups_[g];
    int64_t begin = group.begin;
    while (begin < group.end && positions_[begin] < rows.first) begin++;
    int64_t end = begin;
    while (end < group.end && positions_[end] < rows.first + rows.count) end++;
    if (begin == end) continue;
    const uint8_t* data = b_ + group.adapter * b_bytes_;
    for (int64_t i = 0; i < num_blocks_; i++) {
      const AdapterBlock& block = blocks_[i];
      const matmul::PackedMatrix matrix{data, attributes_.b_format, block.num_ranks,
                                        block.num_panels * kPanelWidth};
      data = matrix.panel(block.num_panels);
      // Panels of W in a panel of the block. The first panel of a task is even.
      const int64_t scale = block.placement == adapters::Placement::kPanels ? 1 : 2;
      const int64_t first = max(first_panel / scale, block.first_panel);
      const int64_t last = min(last_panel / scale, block.first_panel + block.num_panels);
      if (first >= last) continue;
      // Row `position` of the products, and of the changes that begin with rows.first.
      float* const y = changes - rows.first * width + (first * scale - first_panel) * kPanelWidth;
      kernels().adapter_multiply({products_ + block.first_rank, rank, y, width},
                                 Rows{positions_, begin, end - begin}, matrix,
                                 first - block.first_panel, last - block.first_panel,
                                 block.placement);
    }
  }
  epilogue.changes = {changes, rows.first, first_panel, width};
  return true;
}

}  // namespace ort
