#include "../int8_matmul.h"

#include <math.h>
#include <string.h>

#include "../integers.h"
#if SIMD_BITS == 512
#include "int8_microkernel_avx512.h"
#else
#include "int8_microkernel_avx2.h"
#endif

#include "begin_target.h"

namespace row_int8::SIMD {
namespace {

using namespace ::SIMD;

constexpr float kSmallest = 1e-9f;
constexpr float kStep = 1.0f / 127.0f;

// A NaN stays one.
float at_least(float largest) { return largest < kSmallest ? kSmallest : largest; }

// A row as it is.
struct Plain {
  const float* x;
  INLINE Floats some(int64_t i) const { return load(x + i); }
  float one(int64_t i) const { return x[i]; }
};

// A row times a factor for each input.
struct Scaled {
  const float *x, *factors;
  INLINE Floats some(int64_t i) const { return load(x + i) * load(factors + i); }
  float one(int64_t i) const { return x[i] * factors[i]; }
};

// The largest abs; NaN if there is one.
template <typename Row>
float largest_magnitude(const Row& row, int64_t size) {
  Floats best = 0.0f;
  Ints has_nan = 0;
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats value = row.some(i);
    has_nan |= value != value;
    best = max(best, abs(value));
  }
  float found = largest(best);
  bool has_nan_tail = any(has_nan);
  for (; i < size; i++) {
    has_nan_tail |= isnan(row.one(i));
    found = fmaxf(found, fabsf(row.one(i)));
  }
  return has_nan_tail ? NAN : found;
}

// As divided by the largest abs and then by kStep, in whole steps. The product with one over
// both is off by less than 4e-5, which decides only where it is about half between two steps.
template <typename Row>
void quantize_row(const Row& row, int64_t size, float largest, uint8_t* bytes) {
  const float factor = static_cast<float>(1.0 / (double{largest} * kStep));
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats value = row.some(i), about = value * factor;
    Ints steps = nearest_int(about);
    const Floats off = abs(about - __builtin_convertvector(steps, Floats));
    if (any(!(off <= 0.4999f))) steps = nearest_int(value / largest / kStep);  // also NaN
    store_saturated_u8(bytes + i, steps + 128);
  }
  for (; i < size; i++) {
    bytes[i] = static_cast<uint8_t>(nearbyintf(row.one(i) / largest / kStep) + 128.0f);
  }
}

template <typename Row>
void quantize_one(const Row& row, int64_t size, int64_t stride, uint8_t* bytes, float* largest) {
  *largest = at_least(largest_magnitude(row, size));
  quantize_row(row, size, *largest, bytes);
  memset(bytes + size, 0, stride - size);
}

template <int P>
void multiply_panels(const uint8_t* bytes, int64_t stride, const float* largest, int64_t num_rows,
                     const Panel* panels, PanelOutput* outputs) {
  Ahead ahead(panels[P - 1].weights + stride * kPanel);
  while (num_rows) {
    const int64_t count = div_ceil(num_rows, div_ceil(num_rows, kTile));
    with_static_count<kTile>(count, [&](auto tile) {
      multiply_tile<tile.kCount, P>(bytes, stride, largest, panels, outputs, ahead);
    });
    ahead.skip(stride / kGroup / kUnrolled);
    bytes += count * stride;
    largest += count;
    num_rows -= count;
    for (int p = 0; p < P; p++) outputs[p].skip(count);
  }
}

// Rows whose bytes, with panels, stay in a core's caches.
constexpr int64_t kRowBlock = SIMD_BITS == 512 ? 96 : 64;

}  // namespace

void quantize(const float* x, const float* factors, const Rows& rows, int64_t num_inputs,
              uint8_t* bytes, float* largest) {
  const int64_t stride = (num_inputs + kGroup - 1) / kGroup * kGroup;
  for (int64_t row = 0; row < rows.count; row++) {
    const float* const from = x + rows[row] * num_inputs;
    uint8_t* const to = bytes + row * stride;
    if (factors) {
      quantize_one(Scaled{from, factors}, num_inputs, stride, to, largest + row);
    } else {
      quantize_one(Plain{from}, num_inputs, stride, to, largest + row);
    }
  }
}

void multiply(const uint8_t* bytes, const float* largest, const Rows& rows, const Matrix& matrix,
              const Epilogue& epilogue, int64_t first, int64_t last, float* y) {
  const int64_t stride = matrix.num_groups() * kGroup;
  for (int64_t row = 0; row < rows.count; row += kRowBlock) {
    const Rows part = rows.part(row, min(kRowBlock, rows.count - row));
    const auto output = [&](int64_t index) {
      return PanelOutput(epilogue, matrix.num_outputs, part, index, y);
    };
    const uint8_t* const from = bytes + row * stride;
    int64_t index = first;
    if constexpr (kMostPanels == 2) {
      for (; index + 2 <= last; index += 2) {
        const Panel panels[] = {{matrix, index}, {matrix, index + 1}};
        PanelOutput outputs[] = {output(index), output(index + 1)};
        multiply_panels<2>(from, stride, largest + row, part.count, panels, outputs);
      }
    }
    for (; index < last; index++) {
      const Panel panels[] = {{matrix, index}};
      PanelOutput outputs[] = {output(index)};
      multiply_panels<1>(from, stride, largest + row, part.count, panels, outputs);
    }
  }
}

}  // namespace row_int8::SIMD

#include "end_target.h"
