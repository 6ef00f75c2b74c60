#include "int8_matmul_operator.h"

#include "kernels.h"
#include "matmul_call.h"
#include "int8_matmul.h"

namespace ort {
namespace {

constexpr int64_t kTaskProducts = 1'000'000;  // about 10 microseconds
constexpr int64_t kTaskRows = 256, kLeastRows = 4;
constexpr int64_t kQuantizeRows = 16;  // of a task

enum Input : size_t { kX, kWeights, kOrder, kScales, kOffsets, kFactors, kProduct };

struct Work {
  const Product& product;
  row_int8::Matrix matrix;
  const float* factors;
  Tiles tiles;
  float* largest;
  uint8_t* bytes;

  int64_t row_bytes() const { return matrix.num_groups() * row_int8::kGroup; }
};

void quantize_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t begin = static_cast<int64_t>(index) * kQuantizeRows;
  const Rows& rows = work.product.rows;
  kernels().quantize(work.product.x, work.factors,
                     rows.part(begin, min(kQuantizeRows, rows.count - begin)),
                     work.product.num_inputs, work.bytes + begin * work.row_bytes(),
                     work.largest + begin);
}

void multiply_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t task = static_cast<int64_t>(index);
  const Rows rows = work.tiles.rows(task);
  const int64_t begin = rows.first - work.product.rows.first;
  kernels().multiply_bytes(work.bytes + begin * work.row_bytes(), work.largest + begin, rows,
                           work.matrix, work.product.epilogue, work.tiles.first_panel(task),
                           work.tiles.last_panel(task), work.product.y);
}

struct RowInt8MatMul : Stateless {
  static constexpr const char* kName = "RowInt8MatMul";
  static constexpr Parameter kInputs[] = {
      {kFloat}, {kInt8},         {kUInt16},         {kFloat},
      {kInt32}, {kFloat, true}, PRODUCT_PARAMETERS};
  static constexpr Parameter kOutputs[] = {{kFloat}};

  Status* run(const Api& api, KernelContext* context) const {
    Product product{};
    RETURN_IF_FAILED(product.read(api, context, kProduct));
    void* matrix[kProduct] = {};
    for (size_t index = kWeights; index < kProduct; index++) {
      const Value* value = nullptr;
      RETURN_IF_FAILED(api.Input(context, index, &value));
      if (value) RETURN_IF_FAILED(api.Data(value, &matrix[index]));
    }
    Work work{product,
              {static_cast<const int8_t*>(matrix[kWeights]),
               static_cast<const uint16_t*>(matrix[kOrder]),
               static_cast<const float*>(matrix[kScales]),
               static_cast<const int32_t*>(matrix[kOffsets]), product.num_inputs,
               product.num_outputs},
              static_cast<const float*>(matrix[kFactors]),
              Tiles(product, kTaskRows, kTaskProducts, kLeastRows), nullptr, nullptr};
    const int64_t num_rows = product.rows.count;
    Scratch scratch;
    void* const memory = scratch.allocate(num_rows * (work.row_bytes() + sizeof(float)));
    if (!memory) return api.CreateStatus(kRuntimeException, "no memory");
    work.largest = static_cast<float*>(memory);
    work.bytes = reinterpret_cast<uint8_t*>(work.largest + num_rows);
    RETURN_IF_FAILED(
        run_tasks(api, context, quantize_task, div_ceil(num_rows, kQuantizeRows), &work));
    return run_tasks(api, context, multiply_task, work.tiles.count(), &work);
  }
};

}  // namespace

const Operator& row_int8_matmul() { return operator_of<RowInt8MatMul>(); }

}  // namespace ort
