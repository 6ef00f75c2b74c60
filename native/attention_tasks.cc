#include "attention_tasks.h"

#include <string.h>

#include "kernels.h"

namespace ort {
namespace {

using attention::Params;
using attention::QueryBlock;

constexpr int64_t kTaskProducts = 250'000;  // multiply-adds: about 8 microseconds
constexpr int64_t kMaxTasks = 64;
constexpr int64_t kWrittenPositions = 128;  // per task that writes caches; whole blocks of keys
constexpr size_t kMaxRoundedBytes = 8 * 1024 * 1024;  // larger caches are rounded block by block
constexpr size_t kStackFloats = 40 * 1024;  // larger scratch is allocated

// Rows sorted by the cache that they read. Block b, rows[starts[b]] .. rows[starts[b + 1] - 1], has
// rows of one cache.
struct RowBlocks {
  int32_t* rows;
  int32_t* starts;  // [count + 1]
  int64_t count;
};

struct Work {
  const Params& params;
  RowBlocks row_blocks;
  int64_t token_blocks;               // per row
  int64_t num_units, units_per_task;  // a unit: [row block][kv head][token block]
  int64_t num_written;                // positions of each cache to write
  bool is_cache_written_first;        // otherwise, each unit writes the keys that it reads
  int is_out_of_memory;
};

// Counting sort by cache. `memory`: 3 * num_rows + 2 integers.
RowBlocks make_row_blocks(const Params& params, int32_t* memory) {
  const int64_t num_rows = params.num_rows, max_rows = attention::max_block_rows(params);
  RowBlocks blocks{memory, memory + num_rows, 0};
  int32_t* ends = blocks.starts + num_rows + 1;  // where each cache's rows end
  memset(ends, 0, (num_rows + 1) * sizeof(int32_t));
  for (int64_t row = 0; row < num_rows; row++) ends[params.cache_row(row) + 1]++;
  for (int64_t source = 0; source < num_rows; source++) {
    const int32_t first = ends[source], last = first + ends[source + 1];
    ends[source + 1] = last;
    for (int64_t start = first; start < last; start += max_rows) {
      blocks.starts[blocks.count++] = static_cast<int32_t>(start);
    }
  }
  blocks.starts[blocks.count] = static_cast<int32_t>(num_rows);
  for (int64_t row = 0; row < num_rows; row++) {
    blocks.rows[ends[params.cache_row(row)]++] = static_cast<int32_t>(row);
  }
  return blocks;
}

// Writes one part of the positions of one row and key/value head.
void write_cache_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const Params& params = work.params;
  const int64_t num_parts = div_ceil(work.num_written, kWrittenPositions);
  const int64_t task = static_cast<int64_t>(index), head = task / num_parts;
  const int64_t first = task % num_parts * kWrittenPositions;
  kernels().write_cache(params, head / params.num_kv_heads, head % params.num_kv_heads, first,
                        min(first + kWrittenPositions, work.num_written));
}

void attend_units(const Work& work, int64_t first, int64_t last, float* scratch) {
  const Params& params = work.params;
  const int64_t max_tokens = attention::max_block_tokens(params);
  const bool is_decode = params.cache.keys && params.num_tokens == 1;
  for (int64_t unit = first; unit < last; unit++) {
    const int64_t head = unit / work.token_blocks;
    // In a causal prompt, the blocks that see most keys go first, so that threads end together.
    const int64_t token_block = work.token_blocks - 1 - unit % work.token_blocks;
    const int32_t* starts = work.row_blocks.starts + head / params.num_kv_heads;
    const int64_t kv_head = head % params.num_kv_heads;
    const QueryBlock block{work.row_blocks.rows + starts[0], starts[1] - starts[0],
                           token_block * max_tokens,
                           min(params.num_tokens, (token_block + 1) * max_tokens)};
    if (params.cache.keys && !work.is_cache_written_first) {
      for (int64_t row = 0; row < block.num_rows; row++) {
        kernels().write_cache(params, block.rows[row], kv_head, 0, work.num_written);
      }
    }
    if (is_decode && unit + 1 < last) {
      const int32_t* next = work.row_blocks.starts + (unit + 1) / params.num_kv_heads;
      attention::prefetch_cache(params, work.row_blocks.rows[*next],
                                (unit + 1) % params.num_kv_heads);
    }
    if (attention::is_chosen(params, block)) kernels().attend(params, block, kv_head, scratch);
  }
}

void attend_task(void* data, size_t index) {
  Work& work = *static_cast<Work*>(data);
  const int64_t first = static_cast<int64_t>(index) * work.units_per_task;
  const int64_t last = min(first + work.units_per_task, work.num_units);
  const size_t size = attention::scratch_size(work.params);
  if (size <= kStackFloats) {
    alignas(64) float scratch[kStackFloats];
    attend_units(work, first, last, scratch);
    return;
  }
  Scratch scratch;
  float* floats = static_cast<float*>(scratch.allocate(size * sizeof(float)));
  if (!floats) {
    __atomic_store_n(&work.is_out_of_memory, 1, __ATOMIC_RELAXED);
    return;
  }
  attend_units(work, first, last, floats);
}

// Multiply-adds of all rows; a causal prompt skips half of them.
int64_t count_products(const Params& params) {
  int64_t num_products = 0;
  for (int64_t row = 0; row < params.num_rows; row++) num_products += params.length(row);
  num_products *= 2 * params.num_tokens * params.num_heads * params.head_size;
  return params.is_prefill && params.is_causal ? num_products / 2 : num_products;
}

// Gives `params` a RoundedCache in `memory`, unless it would be large.
void share_rounded(Params& params, Scratch& memory) {
  params.rounded.num_blocks = div_ceil(params.max_length(), params.keys_per_block());
  const int64_t num_blocks = params.num_rows * params.num_kv_heads * params.rounded.num_blocks;
  const size_t num_bytes =
      num_blocks * params.keys_per_block() * params.head_size * sizeof(int32_t);
  if (num_bytes > kMaxRoundedBytes) return;
  params.rounded.pairs = static_cast<int32_t*>(memory.allocate(num_bytes));
}

}  // namespace

Status* run_attention(const Api& api, const KernelContext* context, const Params& call) {
  Params params = call;
  Scratch scratch, rounded;
  void* const memory = scratch.allocate((3 * params.num_rows + 2) * sizeof(int32_t));
  if (!memory) return out_of_memory(api);
  Work work{params, make_row_blocks(params, static_cast<int32_t*>(memory)), 0, 0, 0,
            params.num_written(), false, 0};
  work.token_blocks = div_ceil(params.num_tokens, attention::max_block_tokens(params));
  work.num_units = work.row_blocks.count * params.num_kv_heads * work.token_blocks;
  const int64_t num_tasks =
      max(1, min(count_products(params) / kTaskProducts, min(kMaxTasks, work.num_units)));
  work.units_per_task = div_ceil(work.num_units, num_tasks);

  // If so, units of other token blocks or rows would read keys that this unit writes.
  const bool is_copied_for_others =
      params.cache_rows && params.past.keys != params.cache.keys;
  work.is_cache_written_first =
      params.cache.keys && (work.token_blocks > 1 || is_copied_for_others);
  if (work.token_blocks > 1 && params.may_round_cache()) share_rounded(params, rounded);
  if (work.is_cache_written_first) {
    const int64_t num_heads = params.num_rows * params.num_kv_heads;
    RETURN_IF_FAILED(run_tasks(api, context, write_cache_task,
                               num_heads * div_ceil(work.num_written, kWrittenPositions),
                               &work));
  }
  RETURN_IF_FAILED(run_tasks(api, context, attend_task,
                             div_ceil(work.num_units, work.units_per_task), &work));
  return work.is_out_of_memory ? out_of_memory(api) : nullptr;
}

}  // namespace ort
