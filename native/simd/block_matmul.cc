#include "../block_matmul.h"

#include <stddef.h>

#if SIMD_BITS == 512
#include "block_microkernel_avx512.h"
#include "int4_microkernel_avx512.h"
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

// P panels times all rows, up to kMr at a time. `next`: the panel to prefetch.
template <typename Kernel, int P, Source kSource>
void multiply_rows(const Call& call, const uint8_t* const* panels, const uint8_t* next,
                   PanelEpilogue* epilogues) {
  const PackedMatrix& matrix = call.matrix;
  const uint8_t* quantized = call.quantized;
  int64_t num_rows = call.rows.count;
  // Spread over the whole run, so that memory is read all the time.
  RangePrefetcher next_panels(next, P * matrix.panel_bytes(),
                              div_ceil(num_rows, Kernel::kMr) *
                                  (matrix.has_4_bits() ? matrix.num_pairs() : matrix.num_blocks()));
  while (num_rows) {
    const int64_t count = div_ceil(num_rows, div_ceil(num_rows, Kernel::kMr));
    with_static_count<Kernel::kMr>(count, [&](auto mr) {
      Kernel::template multiply<mr.kCount, P, kSource>(quantized, matrix, panels, epilogues,
                                                       next_panels);
    });
    quantized += count * matrix.row_bytes();
    num_rows -= count;
    for (int p = 0; p < P; p++) epilogues[p].advance(count);
  }
}

// Panels index .. index + P - 1. Many rows read a panel of 4 bits from scratch.
template <typename Kernel, int P>
void multiply_panels(const Call& call, int64_t index) {
  const auto epilogue = [&](int64_t panel) {
    return PanelEpilogue(call.epilogue, Factors::kRounded, call.matrix.num_outputs, call.rows,
                         panel, call.y);
  };
  const uint8_t* const next = call.matrix.panel(index + P);
  if constexpr (P == 2) {
    const uint8_t* const panels[] = {call.matrix.panel(index), call.matrix.panel(index + 1)};
    PanelEpilogue epilogues[] = {epilogue(index), epilogue(index + 1)};
    multiply_rows<Kernel, P, Source::kStored>(call, panels, next, epilogues);
  } else {
    const uint8_t* const panel = call.matrix.panel(index);
    PanelEpilogue epilogues[] = {epilogue(index)};
    if constexpr (Kernel::kExpands) {
      if (call.rows.count > Kernel::kMaxStoredRows) {
        Kernel::expand(call.matrix, panel, call.scratch);
        return multiply_rows<Kernel, P, Source::kExpanded>(call, &call.scratch, next, epilogues);
      }
    }
    multiply_rows<Kernel, P, Source::kStored>(call, &panel, next, epilogues);
  }
}

template <typename Kernel>
void multiply_all(const Call& call, int64_t first_panel, int64_t last_panel) {
  int64_t index = first_panel;
  if constexpr (Kernel::kNrPanels == 2) {
    for (; index + 2 <= last_panel; index += 2) multiply_panels<Kernel, 2>(call, index);
  }
  for (; index < last_panel; index++) multiply_panels<Kernel, 1>(call, index);
}

}  // namespace

void multiply(const uint8_t* quantized, const Rows& rows, const PackedMatrix& matrix,
              const Epilogue& epilogue, int64_t first_panel, int64_t last_panel, uint8_t* scratch,
              float* y) {
  const Call call{quantized, rows, matrix, epilogue, scratch, y};
  if (matrix.has_4_bits()) {
    multiply_all<Int4Kernel>(call, first_panel, last_panel);
  } else {
    multiply_all<Int8Kernel>(call, first_panel, last_panel);
  }
}

}  // namespace block_matmul::SIMD

#include "end_target.h"
