#include "embedding_operator.h"

#include "block_matmul.h"
#include "embedding.h"
#include "kernels.h"
#include "matmul_call.h"
#include "norm_call.h"
#include "operator.h"

namespace ort {
namespace {

constexpr int64_t kTaskFloats = 16 * 1024;  // about 5 microseconds

// Inputs after the table, from Table::kNumInputs on.
enum Input : size_t { kTokenIds, kPositions, kNumCached, kSegments, kSegmentIds, kFirstYNorm };
#define EMBEDDING_PARAMETERS                                                          \
  {kInt64}, {kFloat, true}, {kInt32, true}, {kFloat, true}, {kInt64, true}, NORM_PARAMETERS

constexpr const char* kShapes =
    "scales must be [tokens, 1], num_cached [batch], segment_ids [batch, length], and a packed matrix "
    "as long as its attributes say";

// Reads the optional tensor at `index`; it must have `count` elements.
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

// An optional table [count, size].
template <typename T>
struct Embeddings {
  bool is_given;
  const T* data;
  int64_t count, size;

  bool has(int64_t index) const { return !is_given || (0 <= index && index < count); }
  const T* row(int64_t index) const { return is_given ? data + index * size : nullptr; }
};

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

// A token table with 8-bit rows, one scale per row.
struct RowTable {
  static constexpr const char* kName = "Embedding";
  static constexpr Parameter kInputs[] = {{kUInt8}, {kFloat}, EMBEDDING_PARAMETERS};
  static constexpr size_t kNumInputs = 2;

  struct Attributes {
    Status* read(const Api&, const KernelInfo*) { return nullptr; }
  };

  Embeddings<uint8_t> rows;
  const float* scales;

  Status* read(const Api& api, const KernelContext* context, const Attributes&) {
    RETURN_IF_FAILED(read_table(api, context, 0, 0, rows));
    return read_values(api, context, 1, rows.count, scales);
  }
  int64_t count() const { return rows.count; }
  int64_t size() const { return rows.size; }
  void read_row(int64_t id, float* y) const {
    kernels().embedding_restore(rows.row(id), scales[id], rows.size, y);
  }
};

// A token table whose rows are the outputs of a packed block matrix.
struct BlockTable {
  static constexpr const char* kName = "BlockEmbedding";
  static constexpr Parameter kInputs[] = {{kUInt8}, EMBEDDING_PARAMETERS};
  static constexpr size_t kNumInputs = 1;

  struct Attributes {
    WeightFormat format;
    int64_t num_tokens, size;

    Status* read(const Api& api, const KernelInfo* info) {
      RETURN_IF_FAILED(api.Attribute(info, "num_tokens", &num_tokens));
      RETURN_IF_FAILED(api.Attribute(info, "size", &size));
      if (num_tokens <= 0 || num_tokens > INT32_MAX || size <= 0 ||
          size > block_matmul::kMaxInputs || size % block_matmul::kBlockInputs) {
        return api.CreateStatus(
            kInvalidArgument,
            "num_tokens must be from 1 to 2^31 - 1, size a multiple of 32 up to 65536");
      }
      return read_weight_format(api, info, WeightFormat::kInt8Blocks, WeightFormat::kInt6Blocks,
                                format);
    }
  };

  block_matmul::PackedMatrix matrix;

  Status* read(const Api& api, const KernelContext* context, const Attributes& attributes) {
    matrix = {nullptr, attributes.format, attributes.size, attributes.num_tokens, 0};
    const int64_t num_panels = div_ceil(attributes.num_tokens, kPanelWidth);
    return read_values(api, context, 0, num_panels * matrix.panel_bytes(), matrix.data);
  }
  int64_t count() const { return matrix.num_outputs; }
  int64_t size() const { return matrix.num_inputs; }
  void read_row(int64_t id, float* y) const { kernels().block_read_output(matrix, id, y); }
};

template <typename Table>
struct Work {
  Table table;
  Embeddings<float> positions, segments;
  const int64_t* token_ids;   // [batch, length]
  const int64_t* segment_ids;  // [batch, length], or null
  const int32_t* num_cached;  // [batch], or null
  int64_t batch, length;
  float factor;
  norm::Norm norm;
  float* y;

  int64_t size() const { return table.size(); }
  int64_t num_tokens() const { return batch * length; }
  int64_t position(int64_t index) const {
    return index % length + (num_cached ? num_cached[index / length] : 0);
  }
  int64_t segment(int64_t index) const { return segment_ids ? segment_ids[index] : 0; }
  int64_t tokens_per_task() const { return max(1, kTaskFloats / size()); }

  // Returns an error message, or null if all indices are inside their tables.
  const char* check() const {
    for (int64_t index = 0; index < num_tokens(); index++) {
      const int64_t id = token_ids[index];
      if (id < 0 || id >= table.count()) return "a token id is not in the table";
      if (!positions.has(position(index))) return "a position is not in the table";
      if (!segments.has(segment(index))) return "a segment id is not in the table";
    }
    return nullptr;
  }
};

template <typename Table>
void sum_task(void* data, size_t task) {
  const auto& work = *static_cast<Work<Table>*>(data);
  const int64_t begin = static_cast<int64_t>(task) * work.tokens_per_task();
  const int64_t end = min(work.num_tokens(), begin + work.tokens_per_task());
  for (int64_t index = begin; index < end; index++) {
    float* const y = work.y + index * work.size();
    work.table.read_row(work.token_ids[index], y);
    const embedding::Others others{work.positions.row(work.position(index)),
                                   work.segments.row(work.segment(index))};
    kernels().embedding_add(others, work.factor, work.size(), y);
    if (work.norm.scale) kernels().normalize(work.norm, y, 1, y);
  }
}

template <typename Table>
struct Embedding {
  static constexpr const char* kName = Table::kName;
  static constexpr auto& kInputs = Table::kInputs;
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static constexpr size_t kFirst = Table::kNumInputs;

  typename Table::Attributes table;
  float factor;
  NormAttributes y_norm;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(table.read(api, info));
    RETURN_IF_FAILED(api.Attribute(info, "factor", &factor));
    return y_norm.read(api, info, "y_norm_epsilon", "y_norm_is_centered");
  }

  Status* run(const Api& api, KernelContext* context) const {
    Work<Table> work{};
    work.factor = factor;
    RETURN_IF_FAILED(work.table.read(api, context, table));
    const int64_t size = work.size();
    RETURN_IF_FAILED(read_table(api, context, kFirst + kPositions, size, work.positions));
    RETURN_IF_FAILED(read_table(api, context, kFirst + kSegments, size, work.segments));
    RETURN_IF_FAILED(y_norm.norm(api, context, kFirst + kFirstYNorm, size, work.norm));
    const Value* ids = nullptr;
    Dimensions shape;
    RETURN_IF_FAILED(api.Input(context, kFirst + kTokenIds, &ids));
    RETURN_IF_FAILED(data_of(api, ids, work.token_ids));
    RETURN_IF_FAILED(dimensions(api, ids, shape));
    if (shape.rank != 2) {
      return api.CreateStatus(kInvalidArgument, "token_ids must be [batch, length]");
    }
    work.batch = shape.sizes[0], work.length = shape.sizes[1];
    RETURN_IF_FAILED(
        read_values(api, context, kFirst + kNumCached, work.batch, work.num_cached));
    RETURN_IF_FAILED(
        read_values(api, context, kFirst + kSegmentIds, work.num_tokens(), work.segment_ids));
    if (const char* error = work.check()) return api.CreateStatus(kInvalidArgument, error);
    const int64_t sizes[] = {work.batch, work.length, size};
    RETURN_IF_FAILED(output_data(api, context, 0, sizes, 3, work.y));
    return run_tasks(api, context, sum_task<Table>,
                     div_ceil(work.num_tokens(), work.tokens_per_task()), &work);
  }
};

}  // namespace

const Operator& embedding() { return make_operator<Embedding<RowTable>>(); }
const Operator& block_embedding() { return make_operator<Embedding<BlockTable>>(); }

}  // namespace ort
