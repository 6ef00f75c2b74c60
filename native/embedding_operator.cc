#include "embedding_operator.h"

#include "embedding.h"
#include "kernels.h"
#include "norm_call.h"
#include "operator.h"

namespace ort {
namespace {

constexpr int64_t kTaskFloats = 16 * 1024;  // about 5 microseconds

enum Input : size_t {
  kTable,
  kScales,
  kTokenIds,
  kPositions,
  kNumCached,
  kSegments,
  kSegmentIds,
  kFirstYNorm
};

// An optional table [count, size].
template <typename T>
struct Embeddings {
  bool is_given;
  const T* data;
  int64_t count, size;

  bool has(int64_t index) const { return !is_given || (0 <= index && index < count); }
  const T* row(int64_t index) const { return is_given ? data + index * size : nullptr; }
};

struct Work {
  Embeddings<uint8_t> tokens;
  Embeddings<float> positions, segments;
  const float* scales;        // [tokens]
  const int64_t* token_ids;   // [batch, length]
  const int64_t* segment_ids;  // the same, or null
  const int32_t* num_cached;  // [batch], or null
  int64_t batch, length;
  float factor;
  norm::Norm norm;
  float* y;

  int64_t size() const { return tokens.size; }
  int64_t num_tokens() const { return batch * length; }
  int64_t position(int64_t index) const {
    return index % length + (num_cached ? num_cached[index / length] : 0);
  }
  int64_t segment(int64_t index) const { return segment_ids ? segment_ids[index] : 0; }
  int64_t tokens_per_task() const { return max(1, kTaskFloats / size()); }

  // An error message, or null if all indices are in their tables.
  const char* check() const {
    for (int64_t index = 0; index < num_tokens(); index++) {
      if (!tokens.has(token_ids[index])) return "a token id is not in the table";
      if (!positions.has(position(index))) return "a position is not in the table";
      if (!segments.has(segment(index))) return "a segment id is not in the table";
    }
    return nullptr;
  }
};

void sum_task(void* data, size_t task) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t begin = static_cast<int64_t>(task) * work.tokens_per_task();
  const int64_t end = min(work.num_tokens(), begin + work.tokens_per_task());
  for (int64_t index = begin; index < end; index++) {
    const int64_t id = work.token_ids[index];
    float* const y = work.y + index * work.size();
    const embedding::Token token{work.tokens.row(id), work.scales[id],
                                 work.positions.row(work.position(index)),
                                 work.segments.row(work.segment(index))};
    kernels().embedding_sum(token, work.factor, work.size(), y);
    if (work.norm.scale) kernels().normalize(work.norm, y, 1, y);
  }
}

// Reads the table at `index`. Its rows must have `size` elements, unless that is 0.
template <typename T>
Status* read_table(const Api& api, const KernelContext* context, size_t index, int64_t size,
                   Embeddings<T>& out) {
  const Value* value = nullptr;
  Dimensions shape;
  RETURN_IF_FAILED(api.Input(context, index, &value));
  if (!value) return nullptr;
  RETURN_IF_FAILED(data_of(api, value, out.data));
  RETURN_IF_FAILED(dimensions(api, value, shape));
  out.is_given = true, out.count = shape.num_rows(), out.size = shape.last();
  if (shape.rank == 2 && out.size > 0 && (!size || out.size == size)) return nullptr;
  return api.CreateStatus(kInvalidArgument, "all tables must have rows of one size");
}

constexpr const char* kShapes =
    "scales must be [tokens, 1], num_cached [batch], segment_ids [batch, length]";

// Reads the optional tensor at `index`, which must have `count` elements.
template <typename T>
Status* read_values(const Api& api, const KernelContext* context, size_t index, int64_t count,
                    const T*& out) {
  const Value* value = nullptr;
  Dimensions shape;
  RETURN_IF_FAILED(api.Input(context, index, &value));
  if (!value) return nullptr;
  RETURN_IF_FAILED(data_of(api, value, out));
  RETURN_IF_FAILED(dimensions(api, value, shape));
  if (shape.num_rows() * shape.last() == count) return nullptr;
  return api.CreateStatus(kInvalidArgument, kShapes);
}

struct Embedding {
  static constexpr const char* kName = "Embedding";
  static constexpr Parameter kInputs[] = {{kUInt8},       {kFloat},       {kInt64},
                                          {kFloat, true}, {kInt32, true}, {kFloat, true},
                                          {kInt64, true}, NORM_PARAMETERS};
  static constexpr Parameter kOutputs[] = {{kFloat}};

  float factor;
  NormAttributes y_norm;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(api.Attribute(info, "factor", &factor));
    return y_norm.read(api, info, "y_norm_epsilon", "y_norm_is_centered");
  }

  Status* run(const Api& api, KernelContext* context) const {
    Work work{};
    work.factor = factor;
    RETURN_IF_FAILED(read_table(api, context, kTable, 0, work.tokens));
    RETURN_IF_FAILED(read_table(api, context, kPositions, work.size(), work.positions));
    RETURN_IF_FAILED(read_table(api, context, kSegments, work.size(), work.segments));
    RETURN_IF_FAILED(y_norm.norm(api, context, kFirstYNorm, work.size(), work.norm));
    const Value* ids = nullptr;
    Dimensions shape;
    RETURN_IF_FAILED(api.Input(context, kTokenIds, &ids));
    RETURN_IF_FAILED(data_of(api, ids, work.token_ids));
    RETURN_IF_FAILED(dimensions(api, ids, shape));
    if (shape.rank != 2) {
      return api.CreateStatus(kInvalidArgument, "token_ids must be [batch, length]");
    }
    work.batch = shape.sizes[0], work.length = shape.sizes[1];
    RETURN_IF_FAILED(read_values(api, context, kScales, work.tokens.count, work.scales));
    RETURN_IF_FAILED(read_values(api, context, kNumCached, work.batch, work.num_cached));
    RETURN_IF_FAILED(
        read_values(api, context, kSegmentIds, work.num_tokens(), work.segment_ids));
    if (const char* error = work.check()) return api.CreateStatus(kInvalidArgument, error);
    const int64_t sizes[] = {work.batch, work.length, work.size()};
    RETURN_IF_FAILED(output_data(api, context, 0, sizes, 3, work.y));
    return run_tasks(api, context, sum_task, div_ceil(work.num_tokens(), work.tokens_per_task()),
                     &work);
  }
};

}  // namespace

const Operator& embedding() { return make_operator<Embedding>(); }

}  // namespace ort
