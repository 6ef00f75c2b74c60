#include "../block_matmul.h"

#include <stddef.h>

#if SIMD_BITS == 512
#include "block_microkernel_avx512.h"
#else
#include "block_microkernel_avx2.h"
#endif

#include "begin_target.h"

namespace block_matmul::SIMD {
namespace {

using namespace ::SIMD;

static_assert(kMaxStoredRows >= kMinExpandedRows - 1, "there is no scratch for fewer rows");

// All rows times a panel of Parts, up to kMr at a time. `next`: the panel to prefetch.
template <typename Part>
void multiply_rows(const uint8_t* quantized, int64_t num_rows, const PackedMatrix& matrix,
                   const uint8_t* panel, const uint8_t* next, PanelEpilogue& epilogue) {
  // Spread over the whole run, so that memory is read all the time.
  RangePrefetcher next_panel(next, matrix.panel_bytes(),
                             div_ceil(num_rows, kMr) * matrix.num_pairs());
  while (num_rows) {
    const int64_t count = div_ceil(num_rows, div_ceil(num_rows, kMr));
    with_static_count<kMr>(count, [&](auto mr) {
      multiply_panel<mr.kCount, Part>(quantized, matrix, panel, epilogue, next_panel);
    });
    quantized += count * matrix.row_bytes();
    num_rows -= count;
    epilogue.advance(count);
  }
}

}  // namespace

void multiply(const uint8_t* quantized, const Rows& rows, const PackedMatrix& matrix,
              const Epilogue& epilogue, int64_t first_panel, int64_t last_panel, uint8_t* scratch,
              float* y) {
  const int64_t num_rows = rows.count;
  for (int64_t index = first_panel; index < last_panel; index++) {
    const uint8_t *const panel = matrix.panel(index), *const next = matrix.panel(index + 1);
    PanelEpilogue to(epilogue, matrix.num_outputs, rows, index, y);
    if (!matrix.has_4_bits()) {
      multiply_rows<Int8Pair>(quantized, num_rows, matrix, panel, next, to);
    } else if (num_rows > kMaxStoredRows) {
      expand(matrix, panel, scratch);
      multiply_rows<Expanded>(quantized, num_rows, matrix, scratch, next, to);
    } else {
      multiply_rows<Int4Pair>(quantized, num_rows, matrix, panel, next, to);
    }
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
