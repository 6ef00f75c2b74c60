#include "attention_operator.h"

#include <math.h>
#include <string.h>

#include "attention.h"
#include "kernels.h"
#include "operator.h"

namespace ort {
namespace {

// Multiplications and additions in a task: about 8 microseconds.
constexpr int64_t kTaskProducts = 250'000;
constexpr int64_t kMaxTasks = 64;
constexpr size_t kStackFloats = 40 * 1024;

enum Input : size_t {
  kQuery,
  kKey,
  kValue,
  kPastKeys,
  kPastValues,
  kLast,
  kTotal,
  kCos,
  kSin,
  kBias,
  kSinks,
  kSources,
  kNumInputs
};

// An input, or nothing.
struct Tensor {
  bool is_given;
  void* data;  // may be null where there are no elements
  Dimensions shape;

  float* floats() const { return static_cast<float*>(data); }
  const int32_t* integers() const { return static_cast<const int32_t*>(data); }
};

// Rows in the order of the memory they read, cut where another begins, or enough are together.
struct Order {
  int32_t* rows;
  int32_t* starts;  // [num_parts + 1]
  int64_t num_parts;
};

struct Work {
  attention::Call call;
  Order order;
  int64_t blocks_per_row;  // of tokens
  int64_t num_units, units_per_task;
  bool is_written_apart;
  int has_failed;
};

// `memory`: 3 * num_rows + 2 numbers.
Order order_of(const attention::Call& call, int32_t* memory) {
  const int64_t num_rows = call.num_rows, most = attention::rows_at_once(call);
  Order order{memory, memory + num_rows, 0};
  int32_t* ends = order.starts + num_rows + 1;  // of the rows that read one memory
  memset(ends, 0, (num_rows + 1) * sizeof(int32_t));
  for (int64_t row = 0; row < num_rows; row++) ends[call.source(row) + 1]++;
  for (int64_t source = 0; source < num_rows; source++) {
    const int32_t first = ends[source], last = first + ends[source + 1];
    ends[source + 1] = last;
    for (int64_t start = first; start < last; start += most) {
      order.starts[order.num_parts++] = static_cast<int32_t>(start);
    }
  }
  order.starts[order.num_parts] = static_cast<int32_t>(num_rows);
  for (int64_t row = 0; row < num_rows; row++) {
    order.rows[ends[call.source(row)]++] = static_cast<int32_t>(row);
  }
  return order;
}

// A unit is a key head of a row, or of rows that read one memory, or a block of its tokens.
void write_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t heads = work.call.num_kv_heads, unit = static_cast<int64_t>(index);
  kernels().write(work.call, unit / heads, unit % heads);
}

void attend_units(const Work& work, int64_t first, int64_t last, float* scratch) {
  const attention::Call& call = work.call;
  const int64_t size = attention::tokens_at_once(call);
  const bool is_step = call.memory.keys && call.num_tokens == 1;
  for (int64_t unit = first; unit < last; unit++) {
    const int64_t head = unit / work.blocks_per_row, block = unit % work.blocks_per_row;
    const int32_t* starts = work.order.starts + head / call.num_kv_heads;
    const int64_t kv_head = head % call.num_kv_heads;
    const attention::Part part{work.order.rows + starts[0], starts[1] - starts[0], block * size,
                               min(call.num_tokens, (block + 1) * size)};
    if (call.memory.keys && !work.is_written_apart) {
      for (int64_t row = 0; row < part.num_rows; row++) {
        kernels().write(call, part.rows[row], kv_head);
      }
    }
    if (is_step && unit + 1 < last) {
      const int32_t* next = work.order.starts + (unit + 1) / call.num_kv_heads;
      attention::fetch(call, work.order.rows[*next], (unit + 1) % call.num_kv_heads);
    }
    kernels().attend(call, part, kv_head, scratch);
  }
}

void attend_task(void* data, size_t index) {
  Work& work = *static_cast<Work*>(data);
  const int64_t first = static_cast<int64_t>(index) * work.units_per_task;
  const int64_t last = min(first + work.units_per_task, work.num_units);
  const size_t size = attention::scratch_size(work.call);
  if (size <= kStackFloats) {
    alignas(64) float scratch[kStackFloats];
    attend_units(work, first, last, scratch);
    return;
  }
  Scratch scratch;
  float* floats = static_cast<float*>(scratch.allocate(size * sizeof(float)));
  if (!floats) {
    __atomic_store_n(&work.has_failed, 1, __ATOMIC_RELAXED);
    return;
  }
  attend_units(work, first, last, floats);
}

struct Attention {
  static constexpr const char* kName = "Attention";
  static constexpr Parameter kInputs[] = {{kFloat},       {kFloat, true}, {kFloat, true},
                                          {kFloat, true}, {kFloat, true}, {kInt32},
                                          {kInt32},       {kFloat, true}, {kFloat, true},
                                          {kFloat, true}, {kFloat, true}, {kInt32, true}};
  static constexpr Parameter kOutputs[] = {{kFloat}, {kFloat, true}, {kFloat, true}};

  int64_t num_heads, num_kv_heads, is_causal, window, is_interleaved, is_smooth;
  float scale, soft_cap;

  Status* create(const Api& api, const KernelInfo* info);
  Status* run(const Api& api, KernelContext* context) const;
  Status* describe(const Api& api, const Tensor* inputs, attention::Call& call) const;
};

Status* Attention::create(const Api& api, const KernelInfo* info) {
  RETURN_IF_FAILED(api.Attribute(info, "num_heads", &num_heads));
  RETURN_IF_FAILED(api.Attribute(info, "kv_num_heads", &num_kv_heads));
  RETURN_IF_FAILED(api.Attribute(info, "causal", &is_causal));
  RETURN_IF_FAILED(api.Attribute(info, "local_window_size", &window));
  RETURN_IF_FAILED(api.Attribute(info, "rotary_interleaved", &is_interleaved));
  RETURN_IF_FAILED(api.Attribute(info, "smooth_softmax", &is_smooth));
  RETURN_IF_FAILED(api.Attribute(info, "scale", &scale));
  RETURN_IF_FAILED(api.Attribute(info, "softcap", &soft_cap));
  if (num_heads < 1 || num_kv_heads < 1 || num_heads % num_kv_heads) {
    return api.CreateStatus(kInvalidArgument, "num_heads is no multiple of kv_num_heads");
  }
  return nullptr;
}

Status* read(const Api& api, KernelContext* context, size_t index, Tensor& out) {
  const Value* value = nullptr;
  RETURN_IF_FAILED(api.Input(context, index, &value));
  if (!value) return nullptr;
  out.is_given = true;
  RETURN_IF_FAILED(api.Data(value, &out.data));
  const bool is_scalar = index == kTotal;
  return is_scalar ? nullptr : dimensions(api, value, out.shape);
}

bool is_shaped(const Tensor& tensor, int64_t a, int64_t b, int64_t c) {
  const int64_t* sizes = tensor.shape.sizes;
  return tensor.shape.rank == 3 && sizes[0] == a && sizes[1] == b && sizes[2] == c;
}

bool is_memory(const Tensor& tensor, const attention::Call& call, int64_t capacity) {
  const int64_t* sizes = tensor.shape.sizes;
  return tensor.shape.rank == 4 && sizes[0] == call.num_rows && sizes[1] == call.num_kv_heads &&
         sizes[2] == capacity && sizes[3] == call.size;
}

// What the inputs say, checked, but for the memory that keys go to.
Status* Attention::describe(const Api& api, const Tensor* in, attention::Call& call) const {
  const auto refuse = [&](const char* why) { return api.CreateStatus(kInvalidArgument, why); };
  const Tensor &query = in[kQuery], &key = in[kKey], &past = in[kPastKeys], &last = in[kLast];
  const bool is_packed = !key.is_given;
  if (query.shape.rank != 3) return refuse("query has 3 dimensions");
  const int64_t width = query.shape.sizes[2];
  const int64_t num_vectors = num_heads + (is_packed ? 2 * num_kv_heads : 0);
  call.num_heads = num_heads;
  call.num_kv_heads = num_kv_heads;
  call.size = width / num_vectors;
  if (width % num_vectors || call.size % 8) return refuse("heads are multiples of 8 wide");
  call.num_rows = query.shape.sizes[0];
  call.num_tokens = call.num_new = query.shape.sizes[1];
  call.query = {query.floats(), call.num_tokens * width, width};
  if (is_packed) {
    call.key = call.value = call.query;
    call.key.data += num_heads * call.size;
    call.value.data += (num_heads + num_kv_heads) * call.size;
  } else {
    if (key.shape.rank != 3) return refuse("key has 3 dimensions");
    const int64_t kv_width = num_kv_heads * call.size;
    call.num_new = key.shape.sizes[1];
    if (!is_shaped(key, call.num_rows, call.num_new, kv_width) || !in[kValue].is_given ||
        !is_shaped(in[kValue], call.num_rows, call.num_new, kv_width) ||
        (call.num_new && call.num_new != call.num_tokens)) {
      return refuse("key and value are [rows, tokens or 0, kv_heads * size]");
    }
    call.key = {key.floats(), call.num_new * kv_width, kv_width};
    call.value = {in[kValue].floats(), call.num_new * kv_width, kv_width};
  }
  if (past.is_given) {
    const int64_t capacity = past.shape.rank == 4 ? past.shape.sizes[2] : -1;
    if (!is_memory(past, call, capacity) || !is_memory(in[kPastValues], call, capacity)) {
      return refuse("past keys and values are [rows, kv_heads, capacity, size]");
    }
    call.past = {past.floats(), in[kPastValues].floats(), capacity};
  }

  const int64_t total = *in[kTotal].integers();
  call.is_fresh = call.num_new && call.num_tokens == total;
  if (call.num_new > 1 && !call.is_fresh && call.num_rows != 1) {
    return refuse("several tokens after a past are those of one row");
  }
  if (last.shape.rows() * last.shape.last() != call.num_rows) {
    return refuse("seqlens_k is [rows]");
  }
  call.last = last.integers();
  for (int64_t row = 0; row < call.num_rows; row++) {
    const int64_t length = call.length(row), start = call.start(row);
    if (length < 1 || length > max(total, call.past.capacity) || start < 0 ||
        (!call.is_fresh && start > call.past.capacity) || (call.is_fresh && length > total) ||
        (in[kBias].data && length > in[kBias].shape.last())) {
      return refuse("a row's keys are not 1 to those that there is room for");
    }
    if (in[kCos].data && (!call.num_new || length > in[kCos].shape.sizes[0])) {
      return refuse("a position has no angles");
    }
  }
  if (in[kCos].data) {
    const Dimensions &cos = in[kCos].shape, &sin = in[kSin].shape;
    if (cos.rank != 2 || sin.rank != 2 || cos.sizes[0] != sin.sizes[0] ||
        cos.last() != sin.last() || 2 * cos.last() > call.size) {
      return refuse("cos and sin are [positions, half]");
    }
    call.rotary = {in[kCos].floats(), in[kSin].floats(), cos.last(), is_interleaved != 0};
  }
  if (in[kBias].data) {
    const Dimensions& bias = in[kBias].shape;
    if (bias.rank != 4 || (bias.sizes[0] != 1 && bias.sizes[0] != call.num_rows) ||
        (bias.sizes[1] != 1 && bias.sizes[1] != num_heads) ||
        bias.sizes[2] != call.num_tokens) {
      return refuse("attention_bias is [rows or 1, heads or 1, tokens, keys]");
    }
    const int64_t head = call.num_tokens * bias.last();
    call.bias = {in[kBias].floats(), bias.sizes[0] == 1 ? 0 : bias.sizes[1] * head,
                 bias.sizes[1] == 1 ? 0 : head, bias.last()};
  }
  if (in[kSinks].data && in[kSinks].shape.last() != num_heads) {
    return refuse("head_sink is [heads]");
  }
  if (in[kSources].is_given) {
    if (call.num_new || in[kSources].shape.last() != call.num_rows) {
      return refuse("sources are [rows], of rows without new keys");
    }
    call.sources = in[kSources].integers();
    for (int64_t row = 0; row < call.num_rows; row++) {
      const int64_t source = call.source(row);
      if (source < 0 || source >= call.num_rows || call.last[source] != call.last[row]) {
        return refuse("a source is no row, or has another length");
      }
    }
  }
  call.sinks = in[kSinks].floats();
  call.has_zero_sink = is_smooth == 1;
  call.is_causal = is_causal != 0;
  call.window = window > 0 ? window : 0;
  call.soft_cap = soft_cap;
  call.scale = scale != 0.0f ? scale : 1.0f / sqrtf(static_cast<float>(call.size));
  return nullptr;
}

Status* Attention::run(const Api& api, KernelContext* context) const {
  Tensor inputs[kNumInputs] = {};
  for (size_t index = 0; index < kNumInputs; index++) {
    RETURN_IF_FAILED(read(api, context, index, inputs[index]));
  }
  Work work{};
  attention::Call& call = work.call;
  RETURN_IF_FAILED(describe(api, inputs, call));

  const int64_t total = *inputs[kTotal].integers();
  const int64_t capacity = max(total, call.past.capacity);
  const int64_t shapes[3][4] = {{call.num_rows, call.num_tokens, num_heads * call.size},
                                {call.num_rows, num_kv_heads, capacity, call.size},
                                {call.num_rows, num_kv_heads, capacity, call.size}};
  void* outputs[3] = {};
  for (size_t index = 0; index < 3; index++) {
    Value* output = nullptr;
    RETURN_IF_FAILED(api.Output(context, index, shapes[index], index ? 4 : 3, &output));
    if (output) RETURN_IF_FAILED(api.Data(output, &outputs[index]));
  }
  call.output = static_cast<float*>(outputs[0]);
  if (!call.num_rows || !call.num_tokens) return nullptr;
  if (outputs[1] && outputs[2]) {
    call.memory = {static_cast<float*>(outputs[1]), static_cast<float*>(outputs[2]), capacity};
  } else if (!call.is_fresh || call.past.keys) {
    return api.CreateStatus(kInvalidArgument, "what has a past has a present");
  }

  int64_t num_products = 0;
  for (int64_t row = 0; row < call.num_rows; row++) num_products += call.length(row);
  num_products *= 2 * call.num_tokens * num_heads * call.size;
  if (call.is_fresh && call.is_causal) num_products /= 2;
  Scratch memory;
  int32_t* numbers =
      static_cast<int32_t*>(memory.allocate((3 * call.num_rows + 2) * sizeof(int32_t)));
  if (!numbers) return api.CreateStatus(kRuntimeException, "no memory");
  work.order = order_of(call, numbers);
  work.blocks_per_row = div_ceil(call.num_tokens, attention::tokens_at_once(call));
  work.num_units = work.order.num_parts * num_kv_heads * work.blocks_per_row;
  const int64_t num_tasks =
      max(1, min(num_products / kTaskProducts, min(kMaxTasks, work.num_units)));
  work.units_per_task = div_ceil(work.num_units, num_tasks);

  const bool reads_others = call.sources && call.past.keys != call.memory.keys;
  work.is_written_apart = call.memory.keys && (work.blocks_per_row > 1 || reads_others);
  if (work.is_written_apart) {
    RETURN_IF_FAILED(
        run_tasks(api, context, write_task, call.num_rows * num_kv_heads, &work));
  }
  const int64_t count = div_ceil(work.num_units, work.units_per_task);
  RETURN_IF_FAILED(run_tasks(api, context, attend_task, count, &work));
  return work.has_failed ? api.CreateStatus(kRuntimeException, "no memory") : nullptr;
}

}  // namespace

const Operator& attention() { return operator_of<Attention>(); }

}  // namespace ort
