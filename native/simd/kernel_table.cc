// This target's KernelTable (../kernels.h).
#include "../kernels.h"

#include "weight_format.h"

#include "begin_target.h"

namespace matmul::SIMD {
Multiply multiply;
}
namespace adapters::SIMD {
Multiply multiply;
}
namespace int8_matmul::SIMD {
Quantize quantize;
Multiply multiply, multiply_in_tiles;
}
namespace block_matmul::SIMD {
Quantize quantize;
Multiply multiply;
ReadOutput read_output;
}
namespace candidate_matmul::SIMD {
Multiply multiply;
}
namespace attention::SIMD {
WriteCache write_cache;
Attend attend;
}
namespace norm::SIMD {
Normalize normalize;
}
namespace ssru::SIMD {
Advance advance;
}
namespace embedding::SIMD {
Restore restore;
Add add;
}
namespace token_sum::SIMD {
Sum sum;
}
namespace logits::SIMD {
LogSumExp log_sum_exp;
TopIndices top_indices;
TopTokens top_tokens;
}

namespace SIMD {

namespace {

#ifdef __aarch64__
constexpr bool kPairsGroups = false;
#else
constexpr bool kPairsGroups = SIMD_BITS == 256;
#endif

constexpr KernelTable table_with(int8_matmul::Multiply* int8_multiply) {
  return {
      .matmul_multiply = matmul::SIMD::multiply,
      .adapter_multiply = adapters::SIMD::multiply,
      .compress = weight_format::SIMD::compress,
      .int8_quantize = int8_matmul::SIMD::quantize,
      .int8_multiply = int8_multiply,
      .candidate_multiply = candidate_matmul::SIMD::multiply,
      .uses_group_pairs = kPairsGroups,
      .block_quantize = block_matmul::SIMD::quantize,
      .block_multiply = block_matmul::SIMD::multiply,
      .block_read_output = block_matmul::SIMD::read_output,
      .write_cache = attention::SIMD::write_cache,
      .attend = attention::SIMD::attend,
      .normalize = norm::SIMD::normalize,
      .ssru_advance = ssru::SIMD::advance,
      .embedding_restore = embedding::SIMD::restore,
      .embedding_add = embedding::SIMD::add,
      .token_sum = token_sum::SIMD::sum,
      .log_sum_exp = logits::SIMD::log_sum_exp,
      .top_indices = logits::SIMD::top_indices,
      .top_tokens = logits::SIMD::top_tokens,
  };
}

}  // namespace

extern const KernelTable kernel_table;
constexpr KernelTable kernel_table = table_with(int8_matmul::SIMD::multiply);
#if SIMD_BITS == 512
extern const KernelTable tile_kernel_table;
constexpr KernelTable tile_kernel_table = table_with(int8_matmul::SIMD::multiply_in_tiles);
#endif

}  // namespace SIMD

#include "end_target.h"
