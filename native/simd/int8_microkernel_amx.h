// The AMX int8 micro-kernel: up to 32 rows times two panels, in four accumulator tiles. The packed
// panels [groups][16 outputs][4 inputs] and the rows of bytes are loaded as tiles without
// reordering.
#pragma once

#include "../integers.h"
#include "int8_panel.h"
#include "prefetch.h"
#include "tiles.h"

#include "begin_target.h"

namespace int8_matmul::SIMD {

constexpr int64_t kMinTileRows = 16;  // below, vectors are faster
// Cache lines to prefetch per tile of weights. Each block of rows prefetches the next panels again,
// so a quarter of a tile's lines is enough.
constexpr int kFetchesPerTile = kTileRows / 4;

// Sums of up to two blocks of up to 16 rows, for P panels.
template <int P>
struct TileSums {
  alignas(64) Ints sums[2 * kTileRows][P];
};

// sums = bytes [num_rows] times P panels, for one (T = 1) or two (T = 2) blocks of `num_rows` rows.
template <int T, int P>
INLINE void multiply_tiles(const uint8_t* bytes, int64_t stride, int64_t num_rows,
                           const Panel* panels, LinePrefetcher& prefetcher, TileSums<P>& out) {
  const int8_t* w[P];
  for (int p = 0; p < P; p++) w[p] = panels[p].weights;
  const uint8_t* const second = bytes + num_rows * stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t i = 0; i < stride; i += kTileBytes) {
    _tile_loadd(6, w[0] + i * kPanelWidth, kTileBytes);
    _tile_loadd(4, bytes + i, stride);
    _tile_dpbusd(0, 4, 6);
    if constexpr (P == 2) {
      _tile_loadd(7, w[1] + i * kPanelWidth, kTileBytes);
      _tile_dpbusd(1, 4, 7);
    }
    if constexpr (T == 2) {
      _tile_loadd(5, second + i, stride);
      _tile_dpbusd(2, 5, 6);
      if constexpr (P == 2) _tile_dpbusd(3, 5, 7);
    }
    for (int fetched = 0; fetched < P * kFetchesPerTile; fetched++) prefetcher.fetch();
  }
  constexpr int64_t kRowBytes = P * sizeof(Ints);
  _tile_stored(0, out.sums[0], kRowBytes);
  if constexpr (P == 2) _tile_stored(1, out.sums[0] + 1, kRowBytes);
  if constexpr (T == 2) {
    _tile_stored(2, out.sums[num_rows], kRowBytes);
    if constexpr (P == 2) _tile_stored(3, out.sums[num_rows] + 1, kRowBytes);
  }
}

// P panels times up to mc rows. `stride` is a multiple of a tile's 64 bytes.
template <int P>
void multiply_panels_in_tiles(const uint8_t* bytes, int64_t stride, const float* max_abs,
                         int64_t num_rows, const Panel* panels, PanelEpilogue* epilogues) {
  Tiles tiles;
  LinePrefetcher prefetcher(panels[P - 1].weights + stride * kPanelWidth);
  TileSums<P> sums;
  const int64_t num_tiles = div_ceil(num_rows, kTileRows);
  for (int64_t tile = 0; tile < num_tiles;) {
    const int64_t count = div_ceil(num_rows, num_tiles - tile);
    const bool is_pair = tile + 2 <= num_tiles && 2 * count <= num_rows;
    tiles.configure(static_cast<int>(count), kTileBytes);
    int64_t size = count;
    if (is_pair) {
      multiply_tiles<2, P>(bytes, stride, count, panels, prefetcher, sums);
      size *= 2;
    } else {
      multiply_tiles<1, P>(bytes, stride, count, panels, prefetcher, sums);
    }
    int64_t r = 0;
    const auto apply = [&](auto mr) __attribute__((always_inline)) {
      for (int p = 0; p < P; p++) {
        dequantize_and_apply<mr.kCount>(sums.sums[r] + p, P, max_abs + r, panels[p], epilogues[p]);
        epilogues[p].advance(mr.kCount);
      }
      r += mr.kCount;
    };
    while (r + 8 <= size) apply(StaticCount<8>());
    while (r < size) apply(StaticCount<1>());
    bytes += size * stride;
    max_abs += size;
    num_rows -= size;
    tile += is_pair ? 2 : 1;
  }
}

}  // namespace int8_matmul::SIMD

#include "end_target.h"
