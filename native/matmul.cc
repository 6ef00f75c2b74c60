#include "matmul.h"

#include "numbers.h"

namespace matmul {
namespace {

constexpr int64_t kExpandedFloats = 48 * 1024;  // stay in a core's cache

}  // namespace

int64_t panels_at_once(const Matrix& matrix) {
  return larger(1, kExpandedFloats / larger(1, matrix.num_inputs * kPanel));
}

int64_t scratch_size(const Matrix& matrix, int64_t num_rows, int64_t num_panels) {
  if (matrix.form == weights::Form::kFloat) return 0;
  if (num_rows <= kFewRows) return kPanel * smaller(kBlock, matrix.num_inputs);
  return kPanel * matrix.num_inputs * smaller(num_panels, panels_at_once(matrix));
}

}  // namespace matmul
