#include "token_sum_operator.h"

#include "kernels.h"
#include "operator.h"
#include "token_sum.h"

namespace ort {
namespace {

struct Work {
  const float* x;
  int64_t length, size;
  float* y;
};

void sum_task(void* data, size_t text) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t index = static_cast<int64_t>(text);
  kernels().token_sum(work.x + index * work.length * work.size, work.length, work.size,
                      work.y + index * work.size);
}

struct TokenSum {
  static constexpr const char* kName = "TokenSum";
  static constexpr Parameter kInputs[] = {{kFloat}};
  static constexpr Parameter kOutputs[] = {{kFloat}};

  int64_t keeps_axis;

  Status* create(const Api& api, const KernelInfo* info) {
    return api.Attribute(info, "keeps_axis", &keeps_axis);
  }

  Status* run(const Api& api, KernelContext* context) const {
    const Value* value = nullptr;
    void* x = nullptr;
    RETURN_IF_FAILED(api.Input(context, 0, &value));
    RETURN_IF_FAILED(api.Data(value, &x));
    Dimensions shape;
    RETURN_IF_FAILED(dimensions(api, value, shape));
    if (shape.rank != 3) {
      return api.CreateStatus(kInvalidArgument, "x must have 3 dimensions");
    }
    const int64_t batch = shape.sizes[0], length = shape.sizes[1], size = shape.sizes[2];
    const int64_t sizes[] = {batch, keeps_axis ? 1 : size, size};
    float* y = nullptr;
    RETURN_IF_FAILED(output_data(api, context, 0, sizes, keeps_axis ? 3 : 2, y));
    Work work{static_cast<const float*>(x), length, size, y};
    return run_tasks(api, context, sum_task, batch, &work);
  }
};

}  // namespace

const Operator& token_sum() { return make_operator<TokenSum>(); }

}  // namespace ort
