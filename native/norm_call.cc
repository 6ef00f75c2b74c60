#include "norm_call.h"

#include "kernels.h"

namespace ort {
namespace {

constexpr int64_t kTaskFloats = 32 * 1024;  // about 5 microseconds

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

}  // namespace

Status* NormAttributes::read(const Api& api, const KernelInfo* info, const char* epsilon_name,
                             const char* is_centered_name) {
  RETURN_IF_FAILED(api.Attribute(info, epsilon_name, &epsilon));
  return api.Attribute(info, is_centered_name, &is_centered);
}

Status* NormAttributes::norm(const Api& api, const KernelContext* context, size_t first,
                             int64_t size, norm::Norm& out) const {
  out = {nullptr, nullptr, size, epsilon, is_centered != 0};
  const Value* scale = nullptr;
  RETURN_IF_FAILED(api.Input(context, first, &scale));
  if (!scale) return nullptr;
  Dimensions shape;
  RETURN_IF_FAILED(dimensions(api, scale, shape));
  if (shape.last() != size) {
    return api.CreateStatus(kInvalidArgument, "scale must be as long as the rows it normalizes");
  }
  RETURN_IF_FAILED(data_of(api, scale, out.scale));
  return input_data(api, context, first + 1, out.bias);
}

Status* normalize_rows(const Api& api, const KernelContext* context, const norm::Norm& norm,
                       const float* x, int64_t num_rows, float* y) {
  Work work{norm, x, num_rows, max(1, kTaskFloats / max(1, norm.size)), y};
  return run_tasks(api, context, normalize_task, div_ceil(num_rows, work.rows_per_task), &work);
}

}  // namespace ort
