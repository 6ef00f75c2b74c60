#include "matmul.h"

#include "integers.h"

namespace matmul {
namespace {

constexpr int64_t kDecompressedFloats = 48 * 1024;  // 192 KiB: stays in L2

}  // namespace

int64_t nc_panels(const PackedMatrix& matrix) {
  return max(1, kDecompressedFloats / max(1, matrix.num_inputs * kPanelWidth));
}

int64_t scratch_size(const PackedMatrix& matrix, int64_t num_rows, int64_t num_panels) {
  if (matrix.format == WeightFormat::kFloat32) return 0;
  if (num_rows <= kMaxStreamedRows) return kPanelWidth * min(kKc, matrix.num_inputs);
  return kPanelWidth * matrix.num_inputs * min(num_panels, nc_panels(matrix));
}

}  // namespace matmul
