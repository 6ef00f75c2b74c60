// Quantizes rows of x to 8 bits in blocks (../block_matmul.h).
#include "../block_matmul.h"

#include "vectors.h"

#if SIMD_BITS == 512
#include "block_quantize_avx512.h"
#endif

#include "begin_target.h"

namespace block_matmul::SIMD {
namespace {

using namespace ::SIMD;

#if SIMD_BITS == 256

constexpr float kMinMaxAbs = 1e-9f;  // avoids division by zero in a block of zeros
constexpr float kMaxNumber = 127.0f;

void quantize_row(const float* x, const PackedMatrix& matrix, RowBlock* out) {
  for (const float* end = x + matrix.num_inputs; x < end; x += kBlockInputs, out++) {
    Ints largest = 0;
#pragma unroll
    for (int64_t i = 0; i < kBlockInputs; i += kLanes) {
      largest = max(largest, magnitude_bits(load(x + i)));
    }
    const float found = float_of(reduce_max(largest));
    const float max_abs = found < kMinMaxAbs ? kMinMaxAbs : found;  // a NaN stays NaN
    const float inverse = kMaxNumber / max_abs;
    Ints total = 0;
#pragma unroll
    for (int64_t i = 0; i < kBlockInputs; i += kLanes) {
      const Ints numbers = nearest_int(load(x + i) * inverse);
      store_low_bytes(out->numbers + i, numbers);
      total += numbers;
    }
    out->scale = max_abs * (1.0f / kMaxNumber / kScaleUnit);
    out->sum = out->scale * static_cast<float>(reduce_sum(total));
  }
  if (matrix.num_blocks() % 2) memset(out, 0, sizeof *out);
}

#endif

}  // namespace

void quantize(const float* x, const Rows& rows, const PackedMatrix& matrix, uint8_t* quantized) {
  for (int64_t row = 0; row < rows.count; row++, quantized += matrix.row_bytes()) {
#if SIMD_BITS == 256
    auto* const out = reinterpret_cast<RowBlock*>(quantized);
#else
    auto* const out = reinterpret_cast<RowPair*>(quantized);
#endif
    quantize_row(x + rows[row] * matrix.num_inputs, matrix, out);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
