// y = epilogue(x W) in int8: each row of x is quantized to 8 bits at run time (dynamic
// quantization), W was quantized per output by the export. int8_pairing.cc orders W;
// simd/int8_microkernel_*.h have the micro-kernels.
//
// Sums of products are exact, so results equal those of the standard operators bit for bit, except
// for GELU (gelu_coarse in simd/activations.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "epilogue.h"

namespace int8_matmul {

// kr: adjacent inputs of an output, whose four products one instruction adds. Such a set of four
// inputs, for all outputs of a panel, is a group.
constexpr int64_t kKr = 4;

// W [num_inputs, num_outputs], packed: [panels][groups][16 outputs][4 inputs], padded with zeros.
//
// AVX2 adds the products of inputs 2i and 2i + 1 with unsigned bytes in 16 bits, and so those of a
// pair of groups: they must not overflow.
struct PackedMatrix {
  const int8_t* weights;
  // [panels][1 + groups]: the number of paired groups, which come first; then, for each group, the
  // offset in bytes of its inputs in a row of x.
  const uint16_t* group_order;
  const float* scales;             // [panels][16]
  const int32_t* zero_point_sums;  // [panels][16]: zero point 128 times the sum of the weights
  int64_t num_inputs;
  int64_t num_outputs;

  int64_t num_groups() const { return (num_inputs + kKr - 1) / kKr; }
  int64_t num_panels() const { return (num_outputs + kPanelWidth - 1) / kPanelWidth; }
};

// Quantizes rows of x [.., num_inputs], first multiplied by input_factors [num_inputs] unless that
// is null. Writes bytes [rows.count][4 * groups], with zero point 128 and padded with zeros, and
// the largest magnitude of each row, max_abs [rows.count], which corresponds to 127 steps.
using Quantize = void(const float* x, const float* input_factors, const Rows& rows,
                      int64_t num_inputs, uint8_t* bytes, float* max_abs);

// Computes panels first_panel .. last_panel - 1 of the given rows of y [.., width]. `bytes` and
// `max_abs` begin with the first of those rows.
using Multiply = void(const uint8_t* bytes, const float* max_abs, const Rows& rows,
                      const PackedMatrix& matrix, const Epilogue& epilogue, int64_t first_panel,
                      int64_t last_panel, float* y);

}  // namespace int8_matmul
