#include "norm_operator.h"

#include "kernels.h"
#include "norm.h"
#include "operator.h"

namespace ort {
namespace {

constexpr int64_t kTaskFloats = 32 * 1024;  // about 5 microseconds

enum Input : size_t { kX, kScale, kBias, kNumInputs };

struct Work {
  norm::Norm norm;
  const float* x;
  int64_t num_rows, rows_per_task;
  float* y;
};

void normalize_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t first = static_cast<int64_t>(index) * work.rows_per_task;
  const int64_t count = min(work.rows_per_task, work.num_rows - first);
  kernels().normalize(work.norm, work.x + first * work.norm.size, count,
                      work.y + first * work.norm.size);
}

struct Norm {
  static constexpr const char* kName = "Norm";
  static constexpr Parameter kInputs[] = {{kFloat}, {kFloat}, {kFloat, true}};
  static constexpr Parameter kOutputs[] = {{kFloat}};
  static constexpr int kInPlaceInput = kX;

  float epsilon;
  int64_t is_centered;

  Status* create(const Api& api, const KernelInfo* info) {
    RETURN_IF_FAILED(api.Attribute(info, "epsilon", &epsilon));
    return api.Attribute(info, "is_centered", &is_centered);
  }

  Status* run(const Api& api, KernelContext* context) const {
    const Value* values[kNumInputs];
    const void* inputs[kNumInputs] = {};
    for (size_t index = 0; index < kNumInputs; index++) {
      RETURN_IF_FAILED(api.Input(context, index, &values[index]));
      RETURN_IF_FAILED(data_of(api, values[index], inputs[index]));
    }
    Dimensions shape, scale;
    RETURN_IF_FAILED(dimensions(api, values[kX], shape));
    RETURN_IF_FAILED(dimensions(api, values[kScale], scale));
    const int64_t size = shape.last();
    if (scale.last() != size) {
      return api.CreateStatus(kInvalidArgument, "scale must be as long as the last axis of x");
    }
    Value* output = nullptr;
    void* y = nullptr;
    RETURN_IF_FAILED(api.Output(context, 0, shape.sizes, shape.rank, &output));
    RETURN_IF_FAILED(api.Data(output, &y));
    Work work{{static_cast<const float*>(inputs[kScale]), static_cast<const float*>(inputs[kBias]),
               size, epsilon, is_centered != 0},
              static_cast<const float*>(inputs[kX]),
              shape.num_rows(),
              max(1, kTaskFloats / max(1, size)),
              static_cast<float*>(y)};
    return run_tasks(api, context, normalize_task, div_ceil(work.num_rows, work.rows_per_task),
                     &work);
  }
};

}  // namespace

const Operator& norm() { return make_operator<Norm>(); }

}  // namespace ort
