#include "matmul.h"

#include "integers.h"

namespace matmul {
namespace {

constexpr int64_t kExpandedFloats = 48 * 1024;  // stay in a core's cache

}  // namespace

int64_t panels_at_once(const Matrix& matrix) {
  return max(1, kExpandedFloats / max(1, matrix.num_inputs * kPanel));
}

int64_t scratch_size(const Matrix& matrix, int64_t num_rows, int64_t num_panels) {
  if (matrix.form == weights::Form::kFloat) return 0;
  if (num_rows <= kFewRows) return kPanel * min(kBlock, matrix.num_inputs);
  return kPanel * matrix.num_inputs * min(num_panels, panels_at_once(matrix));
}

}  // namespace matmul
