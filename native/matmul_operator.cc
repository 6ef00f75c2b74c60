#include "matmul_operator.h"

#include "kernels.h"
#include "matmul.h"
#include "matmul_call.h"

namespace ort {
namespace {

// What makes a task; a million products take about 20 microseconds. Where panels are expanded for
// many rows, these are not divided.
struct Share {
  int64_t num_rows, num_products;
};
constexpr Share kShare{96, 1'000'000}, kExpandedShare{512, 4'000'000};
constexpr int64_t kLeastRows = 16;

constexpr int64_t kStackFloats = 8 * 1024;

enum Input : size_t { kX, kWeights, kProduct };

struct Work {
  const Product& product;
  matmul::Matrix matrix;
  Tiles tiles;
  int has_failed;
};

void multiply_tile(const Work& work, int64_t task, float* scratch) {
  kernels().multiply_floats(work.product.x, work.tiles.rows(task), work.matrix,
                            work.product.epilogue, work.tiles.first_panel(task),
                            work.tiles.last_panel(task), scratch, work.product.y);
}

void multiply_task(void* data, size_t index) {
  Work& work = *static_cast<Work*>(data);
  const int64_t task = static_cast<int64_t>(index);
  const int64_t num_panels = work.tiles.last_panel(task) - work.tiles.first_panel(task);
  const int64_t size =
      matmul::scratch_size(work.matrix, work.tiles.rows(task).count, num_panels);
  if (size <= kStackFloats) {
    alignas(64) float scratch[kStackFloats];
    return multiply_tile(work, task, scratch);
  }
  Scratch scratch;
  if (void* floats = scratch.allocate(size * sizeof(float))) {
    return multiply_tile(work, task, static_cast<float*>(floats));
  }
  __atomic_store_n(&work.has_failed, 1, __ATOMIC_RELAXED);
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
    const bool is_expanded =
        product.form != weights::Form::kFloat && product.rows.count > kShare.num_rows;
    const Share share = is_expanded ? kExpandedShare : kShare;
    Work work{product,
              {static_cast<const uint8_t*>(weights), product.form, product.num_inputs,
               product.num_outputs},
              Tiles(product, share.num_rows, share.num_products, kLeastRows),
              0};
    RETURN_IF_FAILED(run_tasks(api, context, multiply_task, work.tiles.count(), &work));
    return work.has_failed ? api.CreateStatus(kRuntimeException, "no memory") : nullptr;
  }
};

}  // namespace

const Operator& packed_matmul() { return operator_of<PackedMatMul>(); }

}  // namespace ort
