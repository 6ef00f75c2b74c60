#include "../int8_matmul.h"

#include <math.h>
#include <string.h>

#include "../integers.h"
#if SIMD_BITS == 512
#include "int8_microkernel_amx.h"
#include "int8_microkernel_avx512.h"
#elif defined(__aarch64__)
#include "int8_microkernel_neon.h"
#else
#include "int8_microkernel_avx2.h"
#endif

#include "begin_target.h"

namespace int8_matmul::SIMD {
namespace {

using namespace ::SIMD;

// mc: rows whose bytes stay cached beside panels, a multiple of the micro-tile's.
template <bool kUsesTiles>
constexpr int64_t kMc = kUsesTiles ? 96 : SIMD_BITS == 512 ? 132 : 64;
constexpr float kMinMaxAbs = 1e-9f;  // avoids division by zero in a row of zeros
constexpr float kStep = 1.0f / 127.0f;

// A NaN stays NaN.
float clamp_max_abs(float max_abs) { return max_abs < kMinMaxAbs ? kMinMaxAbs : max_abs; }

// A row of x.
struct PlainRow {
  const float* x;
  INLINE Floats vector(int64_t i) const { return load(x + i); }
  float scalar(int64_t i) const { return x[i]; }
};

// A row of x times the input factors.
struct ScaledRow {
  const float *x, *factors;
  INLINE Floats vector(int64_t i) const { return load(x + i) * load(factors + i); }
  float scalar(int64_t i) const { return x[i] * factors[i]; }
};

constexpr int kChains = 4;  // independent vectors, to hide latency

// The row's largest magnitude; NaN if the row has a NaN.
template <typename Row>
float row_max_abs(const Row& row, int64_t size) {
  Ints largest[kChains] = {};
  const auto add = [&](int64_t i, int chain) __attribute__((always_inline)) {
    largest[chain] = max(largest[chain], magnitude_bits(row.vector(i)));
  };
  int64_t i = 0;
  for (; i + kChains * kLanes <= size; i += kChains * kLanes) {
#pragma unroll
    for (int chain = 0; chain < kChains; chain++) add(i + chain * kLanes, chain);
  }
  for (; i + kLanes <= size; i += kLanes) add(i, 0);
  int32_t found = reduce_max(max(max(largest[0], largest[1]), max(largest[2], largest[3])));
  for (; i < size; i++) {
    found = max(found, magnitude_bits(FloatsOf<2>(row.scalar(i)))[0]);
  }
  return float_of(found);
}

// value / max_abs / kStep, rounded to an integer as the standard operators do. The product with the
// reciprocal is off by less than 4e-5, which matters only near ties: only then, it divides.
template <int kVectors, typename Row>
INLINE void round_quotients(const Row& row, int64_t i, float max_abs, float factor, Ints* steps) {
  Floats errors[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; v++) {
    const Floats approximate = row.vector(i + v * kLanes) * factor;
    steps[v] = nearest_int(approximate);
    errors[v] = abs(approximate - __builtin_convertvector(steps[v], Floats));
  }
#pragma unroll
  for (int v = 1; v < kVectors; v++) errors[0] = max(errors[0], errors[v]);
  if (!any_true(errors[0] > 0.4999f)) return;
#pragma unroll
  for (int v = 0; v < kVectors; v++) {
    steps[v] = nearest_int(row.vector(i + v * kLanes) / max_abs / kStep);
  }
}

// bytes[i] = the rounded quotient + 128, saturated.
template <typename Row>
void quantize_values(const Row& row, int64_t size, float max_abs, uint8_t* bytes) {
  const float factor = static_cast<float>(1.0 / (double{max_abs} * kStep));
  int64_t i = 0;
  for (; i + kChains * kLanes <= size; i += kChains * kLanes) {
    Ints steps[kChains];
    round_quotients<kChains>(row, i, max_abs, factor, steps);
    store_4_biased_bytes(bytes + i, steps);
  }
  for (; i + kLanes <= size; i += kLanes) {
    Ints steps;
    round_quotients<1>(row, i, max_abs, factor, &steps);
    store_saturated_u8(bytes + i, steps + 128);
  }
  for (; i < size; i++) {
    bytes[i] = static_cast<uint8_t>(nearbyintf(row.scalar(i) / max_abs / kStep) + 128.0f);
  }
}

template <typename Row>
void quantize_row(const Row& row, int64_t size, int64_t stride, uint8_t* bytes, float* max_abs) {
  *max_abs = clamp_max_abs(row_max_abs(row, size));
  quantize_values(row, size, *max_abs, bytes);
  memset(bytes + size, 0, stride - size);
}

// P panels times up to mc rows.
template <int P, bool kUsesTiles>
void multiply_panels(const uint8_t* bytes, int64_t stride, const float* max_abs, int64_t num_rows,
                     const Panel* panels, PanelEpilogue* epilogues) {
#if SIMD_BITS == 512
  if (kUsesTiles && num_rows >= kMinTileRows && stride % kTileBytes == 0) {
    return multiply_panels_in_tiles<P>(bytes, stride, max_abs, num_rows, panels, epilogues);
  }
#endif
  PanelPrefetcher prefetcher(panels[P - 1].weights + stride * kPanelWidth, kUnroll * kNrPanels,
                             div_ceil(num_rows, kMr));
  while (num_rows) {
    const int64_t count = div_ceil(num_rows, div_ceil(num_rows, kMr));
    with_static_count<kMr>(count, [&](auto mr) {
      multiply_micro_tile<mr.kCount, P>(bytes, stride, max_abs, panels, epilogues, prefetcher);
    });
    prefetcher.next_tile(stride / kKr / kUnroll);
    bytes += count * stride;
    max_abs += count;
    num_rows -= count;
    for (int p = 0; p < P; p++) epilogues[p].advance(count);
  }
}

template <bool kUsesTiles>
void multiply_all(const uint8_t* bytes, const float* max_abs, const Rows& rows,
                  const PackedMatrix& matrix, const Epilogue& epilogue, int64_t first_panel,
                  int64_t last_panel, float* y) {
  const int64_t stride = matrix.num_groups() * kKr;
  for (int64_t row = 0; row < rows.count; row += kMc<kUsesTiles>) {
    const Rows mc_rows = rows.slice(row, min(kMc<kUsesTiles>, rows.count - row));
    const auto panel_epilogue = [&](int64_t index) {
      return PanelEpilogue(epilogue, matrix.num_outputs, mc_rows, index, y);
    };
    const uint8_t* const from = bytes + row * stride;
    int64_t index = first_panel;
    if constexpr (kNrPanels == 2) {
      for (; index + 2 <= last_panel; index += 2) {
        const Panel panels[] = {{matrix, index}, {matrix, index + 1}};
        PanelEpilogue epilogues[] = {panel_epilogue(index), panel_epilogue(index + 1)};
        multiply_panels<2, kUsesTiles>(from, stride, max_abs + row, mc_rows.count, panels, epilogues);
      }
    }
    for (; index < last_panel; index++) {
      const Panel panels[] = {{matrix, index}};
      PanelEpilogue epilogues[] = {panel_epilogue(index)};
      multiply_panels<1, kUsesTiles>(from, stride, max_abs + row, mc_rows.count, panels, epilogues);
    }
  }
}

}  // namespace

void quantize(const float* x, const float* input_factors, const Rows& rows, int64_t num_inputs,
              uint8_t* bytes, float* max_abs) {
  const int64_t stride = (num_inputs + kKr - 1) / kKr * kKr;
  for (int64_t row = 0; row < rows.count; row++) {
    const float* const from = x + rows[row] * num_inputs;
    uint8_t* const to = bytes + row * stride;
    if (input_factors) {
      quantize_row(ScaledRow{from, input_factors}, num_inputs, stride, to, max_abs + row);
    } else {
      quantize_row(PlainRow{from}, num_inputs, stride, to, max_abs + row);
    }
  }
}

void multiply(const uint8_t* bytes, const float* max_abs, const Rows& rows,
              const PackedMatrix& matrix, const Epilogue& epilogue, int64_t first_panel,
              int64_t last_panel, float* y) {
  multiply_all<false>(bytes, max_abs, rows, matrix, epilogue, first_panel, last_panel, y);
}

#if SIMD_BITS == 512
void multiply_in_tiles(const uint8_t* bytes, const float* max_abs, const Rows& rows,
                       const PackedMatrix& matrix, const Epilogue& epilogue, int64_t first_panel,
                       int64_t last_panel, float* y) {
  multiply_all<true>(bytes, max_abs, rows, matrix, epilogue, first_panel, last_panel, y);
}
#endif

}  // namespace int8_matmul::SIMD

#include "end_target.h"
