// Some rows times a panel, with sums of products in 16 bits: of pairs of groups, where they fit.
#pragma once

#include "int8_panel.h"
#include "row_pointers.h"

#include "begin_target.h"

namespace row_int8::SIMD {

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
  finish<R>(found[0], 2, largest, panel, *outputs);
}

}  // namespace row_int8::SIMD

#include "end_target.h"
