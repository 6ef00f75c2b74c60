// y = epilogue(x W) in fp32, W packed. simd/matmul.cc has the micro-kernel.
//
// Blocked as in BLIS (Van Zee and van de Geijn 2015): a micro-tile of mr rows and nr outputs sums
// kc inputs in registers; mc rows pass over the same panels. Each output's products are added in
// an order that does not depend on the other rows.
#pragma once

#include <stdint.h>

#include "epilogue.h"
#include "weight_format.h"

namespace matmul {

// W [num_inputs, num_outputs], packed: [panels][num_inputs][16 outputs], the last panel padded with
// zeros, each panel stored in `format`.
struct PackedMatrix {
  const uint8_t* data;
  WeightFormat format;
  int64_t num_inputs;
  int64_t num_outputs;

  const uint8_t* panel(int64_t index) const {
    return data + index * weight_format::panel_bytes(format, num_inputs);
  }
};

// kc: inputs summed before they are added to the total; a panel's kc block stays in L1.
constexpr int64_t kKc = 384;
// Up to this many rows, a compressed panel is decompressed kc inputs at a time, not as a whole.
constexpr int64_t kMaxStreamedRows = 6;

// nc in panels: the compressed panels that are decompressed together, for all rows.
int64_t nc_panels(const PackedMatrix& matrix);

// Floats of scratch to multiply `num_rows` rows with `num_panels` panels.
int64_t scratch_size(const PackedMatrix& matrix, int64_t num_rows, int64_t num_panels);

// Computes panels first_panel .. last_panel - 1 of the given rows of y [.., width] from
// x [.., num_inputs].
using Multiply = void(const float* x, const Rows& rows, const PackedMatrix& matrix,
                      const Epilogue& epilogue, int64_t first_panel, int64_t last_panel,
                      float* scratch, float* y);

}  // namespace matmul
