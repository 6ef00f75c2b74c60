#include "../block_matmul.h"

#include <stddef.h>

#if SIMD_BITS == 512
#include "block_microkernel_avx512.h"
#else
#include "block_microkernel_256.h"
#endif

#include "begin_target.h"

namespace block_matmul::SIMD {
namespace {

using namespace ::SIMD;

static_assert(kMaxStoredRows >= kMinExpandedRows - 1, "there is no scratch for fewer rows");
static_assert(kNrPanels <= kMaxExpandedPanels, "there is no scratch for more panels");

// All rows times P adjacent panels of Pairs, up to kMr<P> rows at a time.
template <int P, typename Pair>
void multiply_panels(const uint8_t* quantized, int64_t num_rows, const PackedMatrix& matrix,
                     const Panels& panels, PanelEpilogue* epilogues) {
  const int64_t num_tiles = div_ceil(num_rows, kMr<P>), num_bytes = P * matrix.panel_bytes();
  // Spread over the whole run, to keep the memory bus busy.
  RangePrefetcher next_panels(panels.stored + num_bytes, num_bytes, num_tiles * matrix.num_pairs());
  const auto multiply_tiles = [&](int64_t num_left, auto reading) __attribute__((always_inline)) {
    for (; num_left; num_left--) {
      const int64_t count = div_ceil(num_rows, div_ceil(num_rows, kMr<P>));
      with_static_count<kMr<P>>(count, [&](auto mr) {
        multiply_micro_tile<mr.kCount, P, Pair, reading.kValue>(quantized, matrix, panels,
                                                                epilogues, next_panels);
      });
      quantized += count * matrix.row_bytes();
      num_rows -= count;
      for (int p = 0; p < P; p++) epilogues[p].advance(count);
    }
  };
  if constexpr (SIMD_BITS == 512 || kIsInt4<Pair>) {
    if (P > 1 || num_rows > kMaxStoredRows) {  // always with several panels
      multiply_tiles(1, StaticReading<Reading::kExpand>());
      return multiply_tiles(num_tiles - 1, StaticReading<Reading::kExpanded>());
    }
  }
  multiply_tiles(num_tiles, StaticReading<Reading::kStored>());
}

}  // namespace

void multiply(const uint8_t* quantized, const Rows& rows, const PackedMatrix& matrix,
              const Epilogue& epilogue, int64_t first_panel, int64_t last_panel, uint8_t* scratch,
              float* y) {
  int64_t index = first_panel;
  const auto multiply_next = [&](auto num_panels) __attribute__((always_inline)) {
    constexpr int P = num_panels.kCount;
    const auto epilogue_of = [&](int64_t p) {
      return PanelEpilogue(epilogue, matrix.num_outputs, rows, index + p, y);
    };
    PanelEpilogue epilogues[] = {epilogue_of(0), epilogue_of(P - 1)};
    const Panels panels{matrix.panel(index), scratch};
    const auto multiply = [&]<typename Pair>() {
      multiply_panels<P, Pair>(quantized, rows.count, matrix, panels, epilogues);
    };
    switch (matrix.format) {
      case WeightFormat::kInt4Blocks: multiply.template operator()<Int4Pair>(); break;
      case WeightFormat::kSmallInt4Blocks: multiply.template operator()<SmallInt4Pair>(); break;
      case WeightFormat::kInt6Blocks: multiply.template operator()<Int6Pair>(); break;
      default: multiply.template operator()<Int8Pair>();
    }
    index += P;
  };
  if (rows.count > kMaxStoredRows) {
    while (index + kNrPanels <= last_panel) multiply_next(StaticCount<kNrPanels>());
  }
  while (index < last_panel) multiply_next(StaticCount<1>());
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
