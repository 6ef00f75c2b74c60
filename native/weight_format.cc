#include "weight_format.h"

#include "exported.h"
#include "kernels.h"

namespace weight_format {

int64_t panel_bytes(WeightFormat format, int64_t num_inputs) {
  const int64_t num_blocks = num_inputs % kBlockInputs ? 0 : num_inputs / kBlockInputs;
  switch (format) {
    case WeightFormat::kFloat32: return num_inputs * kPanelWidth * sizeof(float);
    case WeightFormat::kFloat16:
    case WeightFormat::kBFloat16: return num_inputs * kPanelWidth * sizeof(uint16_t);
    case WeightFormat::kInt8Blocks: return num_blocks * sizeof(QuantizedBlock<8>);
    case WeightFormat::kInt4Blocks: return num_blocks * sizeof(QuantizedBlock<4>);
    case WeightFormat::kSmallInt4Blocks:
    case WeightFormat::kInt6Blocks: return 0;  // only block_matmul.h has them
  }
  return 0;
}

}  // namespace weight_format

// weight_format::panel_bytes, for server/runtime/kernels/weights.py.
EXPORTED int64_t triune_panel_bytes(int32_t format, int64_t num_inputs) {
  return weight_format::panel_bytes(static_cast<WeightFormat>(format), num_inputs);
}

// Compresses panels [num_panels][num_inputs][16] to out [num_panels][panel_bytes]. Returns false if
// a weight would change; `out` is then undefined.
EXPORTED bool triune_compress_panels(int32_t format, const float* panels, int64_t num_panels,
                                     int64_t num_inputs, uint8_t* out) {
  const WeightFormat wanted = static_cast<WeightFormat>(format);
  const int64_t num_bytes = weight_format::panel_bytes(wanted, num_inputs);
  for (int64_t index = 0; index < num_panels; index++) {
    const float* panel = panels + index * num_inputs * kPanelWidth;
    if (!kernels().compress(wanted, panel, num_inputs, out + index * num_bytes)) return false;
  }
  return true;
}
