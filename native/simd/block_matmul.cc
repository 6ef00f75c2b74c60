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

static_assert(Int4Kernel::kMaxStoredRows >= kMinExpandedRows - 1,
              "there is no scratch for fewer rows");

// One call of `multiply`.
struct Call {
  const uint8_t* quantized;
  const Rows& rows;
  const PackedMatrix& matrix;
  const Epilogue& epilogue;
  uint8_t* scratch;
  float* y;
};

// All rows times a panel, up to kMr at a time. `next`: the panel to prefetch.
template <typename Kernel, Source kSource>
void multiply_rows(const Call& call, const uint8_t* panel, const uint8_t* next,
                   PanelEpilogue& epilogue) {
  const PackedMatrix& matrix = call.matrix;
  const uint8_t* quantized = call.quantized;
  int64_t num_rows = call.rows.count;
  // Spread over the whole run, so that memory is read all the time.
  RangePrefetcher next_panel(next, matrix.panel_bytes(),
                             div_ceil(num_rows, Kernel::kMr) * matrix.num_pairs());
  while (num_rows) {
    const int64_t count = div_ceil(num_rows, div_ceil(num_rows, Kernel::kMr));
    with_static_count<Kernel::kMr>(count, [&](auto mr) {
      Kernel::template multiply<mr.kCount, kSource>(quantized, matrix, panel, epilogue, next_panel);
    });
    quantized += count * matrix.row_bytes();
    num_rows -= count;
    epilogue.advance(count);
  }
}

template <typename Kernel>
void multiply_panels(const Call& call, int64_t first_panel, int64_t last_panel) {
  const PackedMatrix& matrix = call.matrix;
  for (int64_t index = first_panel; index < last_panel; index++) {
    const uint8_t *const panel = matrix.panel(index), *const next = matrix.panel(index + 1);
    PanelEpilogue epilogue(call.epilogue, Factors::kRounded, matrix.num_outputs, call.rows, index,
                           call.y);
    if constexpr (__is_same(Kernel, Int4Kernel)) {
      if (call.rows.count > Kernel::kMaxStoredRows) {
        Kernel::expand(matrix, panel, call.scratch);
        multiply_rows<Kernel, Source::kExpanded>(call, call.scratch, next, epilogue);
        continue;
      }
    }
    multiply_rows<Kernel, Source::kStored>(call, panel, next, epilogue);
  }
}

}  // namespace

void multiply(const uint8_t* quantized, const Rows& rows, const PackedMatrix& matrix,
              const Epilogue& epilogue, int64_t first_panel, int64_t last_panel, uint8_t* scratch,
              float* y) {
  const Call call{quantized, rows, matrix, epilogue, scratch, y};
  if (matrix.has_4_bits()) {
    multiply_panels<Int4Kernel>(call, first_panel, last_panel);
  } else {
    multiply_panels<Int8Kernel>(call, first_panel, last_panel);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
