#include "matmul_operator.h"

#include "matmul.h"
#include "product.h"

namespace ort {
namespace {

constexpr int64_t kTaskProducts = 1'000'000;  // about 20 microseconds
constexpr int64_t kTaskRows = 96, kLeastRows = 16;

enum Input : size_t { kX, kWeights, kProduct };

struct Work {
  const Product& product;
  matmul::Matrix matrix;
  Tiles tiles;
};

void multiply_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t task = static_cast<int64_t>(index);
  matmul::multiply(work.product.x, work.tiles.rows(task), work.matrix, work.product.epilogue,
                   work.tiles.first_panel(task), work.tiles.last_panel(task), work.product.y);
}

struct PackedMatMul : Stateless {
  static constexpr const char* kName = "PackedMatMul";
  static constexpr Parameter kInputs[] = {{kFloat}, {kFloat}, PRODUCT_PARAMETERS};
  static constexpr Parameter kOutputs[] = {{kFloat}};

  Status* run(const Api& api, KernelContext* context) const {
    Product product{};
    RETURN_IF_FAILED(product.read(api, context, kProduct));
    const Value* value = nullptr;
    void* weights = nullptr;
    RETURN_IF_FAILED(api.Input(context, kWeights, &value));
    RETURN_IF_FAILED(api.Data(value, &weights));
    Work work{product,
              {static_cast<const float*>(weights), product.num_inputs, product.num_outputs},
              Tiles(product, kTaskRows, kTaskProducts, kLeastRows)};
    return run_tasks(api, context, multiply_task, work.tiles.count(), &work);
  }
};

}  // namespace

const Operator& packed_matmul() { return operator_of<PackedMatMul>(); }

}  // namespace ort
