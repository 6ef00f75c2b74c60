#include "norm_rows.h"

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

Status* normalize_rows(const Api& api, const KernelContext* context, const norm::Norm& norm,
                       const float* x, int64_t num_rows, float* y) {
  Work work{norm, x, num_rows, max(1, kTaskFloats / max(1, norm.size)), y};
  return run_tasks(api, context, normalize_task, div_ceil(num_rows, work.rows_per_task), &work);
}

}  // namespace ort
