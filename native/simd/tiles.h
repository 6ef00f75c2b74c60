// AMX tiles: eight registers of up to 16 rows of 64 bytes. Intel 64 and IA-32 Architectures
// Software Developer's Manual, volume 1, chapter 18.
#pragma once

#include <string.h>

#include "vectors.h"

#include "begin_target.h"

namespace SIMD {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // per tile row

// Configures the eight tiles of this thread; the destructor releases them.
class Tiles {
 public:
  INLINE Tiles() = default;
  INLINE ~Tiles() {
    if (num_rows_) _tile_release();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Tiles 0 to 3 hold sums, 4 and 5 x, 6 and 7 weights: `num_rows` rows of x of `x_bytes` bytes
  // each, at most 64, times 16 outputs.
  INLINE void configure(int num_rows, int x_bytes) {
    if (num_rows == num_rows_) return;
    num_rows_ = num_rows;
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t num_rows[16] = {};
    } config;
    static_assert(sizeof config == 64);
    for (int tile = 0; tile < 8; tile++) {
      const bool is_x = tile == 4 || tile == 5, is_weights = tile > 5;
      config.row_bytes[tile] = static_cast<uint16_t>(is_x ? x_bytes : kTileBytes);
      config.num_rows[tile] = static_cast<uint8_t>(is_weights ? x_bytes / 4 : num_rows);
    }
    _tile_loadconfig(&config);
  }

 private:
  int num_rows_ = 0;
};

}  // namespace SIMD

#include "end_target.h"
