// Some rows times some panels of a matrix of bytes.
#pragma once

#include "../row_int8.h"
#include "panel_output.h"
#include "rows_ahead.h"

#include "begin.h"

namespace row_int8::SIMD {

using namespace ::SIMD;

// One panel of a matrix.
struct Panel {
  const int8_t* weights;
  const uint16_t* inputs;  // where those of each group are, in bytes
  int64_t num_groups, num_paired;
  const float* scales;
  const int32_t* offsets;

  Panel(const Matrix& matrix, int64_t index)
      : weights(matrix.weights + index * matrix.num_groups() * kGroup * kPanel),
        inputs(matrix.order + index * (matrix.num_groups() + 1) + 1),
        num_groups(matrix.num_groups()),
        num_paired(inputs[-1]),
        scales(matrix.scales + index * kPanel),
        offsets(matrix.offsets + index * kPanel) {}
};

// Sums of R rows and one panel, in place of whole numbers. Those are of unsigned bytes: the offsets
// are taken off.
INLINE void finish(int64_t num_rows, Ints* sums, int64_t stride, const float* largest,
                   const Panel& panel, const PanelOutput& output) {
  Floats* const values = reinterpret_cast<Floats*>(sums);
  for (int64_t r = 0; r < num_rows; r++) {
    for (int v = 0; v < kPanelVectors; v++) {
      const Ints sum = sums[r * stride + v] - load<Ints>(panel.offsets + v * kLanes);
      const Floats scaled =
          __builtin_convertvector(sum, Floats) * load(panel.scales + v * kLanes);
      values[r * stride + v] = scaled * largest[r];
    }
  }
  output.finish_all(num_rows, values, stride);
}

#if SIMD_BITS == 512

constexpr int kMostPanels = 2, kTile = 12;  // 24 of 32 registers are sums
// Groups in a step of its loop. Two panels have eight lines of a cache for them; eight tiles, all
// the rows that panels are read for, fetch one each of the next two.
constexpr int kUnrolled = 4;

// R rows times P panels, whose groups lie in order. Four products are added in one instruction.
template <int R, int P>
void multiply_tile(const uint8_t* bytes, int64_t stride, const float* largest, const Panel* panels,
                   const PanelOutput* outputs, Ahead ahead) {
  __m512i sums[R][P];
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) {
      sums[r][p] = _mm512_setzero_si512();
      outputs[p].fetch(r);
    }
  }
  RowsAhead<R> rows(bytes, stride);
  const __m512i* w[P];
#pragma unroll
  for (int p = 0; p < P; p++) w[p] = reinterpret_cast<const __m512i*>(panels[p].weights);
  const auto add = [&](int64_t group) __attribute__((always_inline)) {
    __m512i weights[P];
#pragma unroll
    for (int p = 0; p < P; p++) weights[p] = _mm512_loadu_si512(w[p] + group);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m512i x = _mm512_set1_epi32(rows.template at<int32_t>(r, group * kGroup));
#pragma unroll
      for (int p = 0; p < P; p++) sums[r][p] = _mm512_dpbusd_epi32(sums[r][p], x, weights[p]);
    }
  };
  const auto skip = [&](int64_t num_groups) __attribute__((always_inline)) {
    rows.skip(num_groups * kGroup);
#pragma unroll
    for (int p = 0; p < P; p++) w[p] += num_groups;
  };
  int64_t left = stride / kGroup;
  for (; left >= kUnrolled; left -= kUnrolled) {
    if constexpr (P == 2) ahead.fetch();
#pragma unroll
    for (int group = 0; group < kUnrolled; group++) add(group);
    skip(kUnrolled);
  }
  for (; left; left--) {
    add(0);
    skip(1);
  }
  Ints found[R][P];  // sums stay in registers
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int p = 0; p < P; p++) found[r][p] = reinterpret_cast<Ints>(sums[r][p]);
  }
#pragma unroll
  for (int p = 0; p < P; p++) finish(R, found[0] + p, P, largest, panels[p], outputs[p]);
}

#else

constexpr int kMostPanels = 1, kTile = 4, kUnrolled = 4;

// The four bytes at `offset`, eight times.
INLINE __m256i broadcast(const uint8_t* row, uint64_t offset) {
  int32_t bytes;
  memcpy(&bytes, row + offset, sizeof(bytes));
  return _mm256_set1_epi32(bytes);
}

// maddubs with what would be loaded into a register if it were told in C.
INLINE __m256i multiply_from(const __m256i* w, __m256i x) {
  __m256i products;
  asm("vpmaddubsw %2, %1, %0" : "=x"(products) : "x"(x), "m"(*w));
  return products;
}

// R rows times one panel.
template <int R, int P>
void multiply_tile(const uint8_t* bytes, int64_t stride, const float* largest, const Panel* panels,
                   const PanelOutput* outputs, Ahead) {
  const Panel& panel = *panels;
  __m256i sums[R][2];
  const uint8_t* rows[R];
#pragma unroll
  for (int r = 0; r < R; r++) {
    sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    rows[r] = bytes + r * stride;
    outputs->fetch(r);
  }
  __m256i ones = _mm256_set1_epi16(1);
  asm("" : "+x"(ones));  // is made once, and stays in its register
  // With as few instructions as there can be: they are what another thread of the core leaves.
  const __m256i* w = reinterpret_cast<const __m256i*>(panel.weights);
  int64_t g = 0;
  for (; g < panel.num_paired; g += 2, w += 4) {
    const __m256i w00 = _mm256_loadu_si256(w), w01 = _mm256_loadu_si256(w + 1);
    const __m256i w10 = _mm256_loadu_si256(w + 2);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m256i x = broadcast(rows[r], panel.inputs[g]);
      const __m256i z = broadcast(rows[r], panel.inputs[g + 1]);
      const __m256i first =
          _mm256_add_epi16(_mm256_maddubs_epi16(x, w00), _mm256_maddubs_epi16(z, w10));
      const __m256i second =
          _mm256_add_epi16(_mm256_maddubs_epi16(x, w01), multiply_from(w + 3, z));
      sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(first, ones));
      sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(second, ones));
    }
  }
  for (; g < panel.num_groups; g++, w += 2) {
    const __m256i w0 = _mm256_loadu_si256(w), w1 = _mm256_loadu_si256(w + 1);
#pragma unroll
    for (int r = 0; r < R; r++) {
      const __m256i x = broadcast(rows[r], panel.inputs[g]);
      const __m256i first = _mm256_maddubs_epi16(x, w0), second = _mm256_maddubs_epi16(x, w1);
      sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(first, ones));
      sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(second, ones));
    }
  }
  Ints found[R][2];  // sums stay in registers
#pragma unroll
  for (int r = 0; r < R; r++) {
#pragma unroll
    for (int half = 0; half < 2; half++) found[r][half] = reinterpret_cast<Ints>(sums[r][half]);
  }
  finish(R, found[0], 2, largest, panel, *outputs);
}

#endif

}  // namespace row_int8::SIMD

#include "end.h"
