#include "attention.h"

#include "attention_state.h"
#include "integers.h"

namespace attention {
namespace {

// The most query rows (tokens times heads of a group) in a QueryBlock. Without a cache, each block
// packs the keys again, and more queries share that cost.
constexpr int64_t kMaxQueries = 48, kMaxQueriesWithoutCache = 128;

constexpr int64_t kPrefetchedKeys = 48;  // after these, the hardware prefetcher takes over
constexpr int64_t kPageFloats = 1024;    // a 4 KiB page
constexpr int64_t kPrefetchedPages = 32;
constexpr int kToL2 = 2;                 // locality argument of __builtin_prefetch

}  // namespace

bool is_chosen(const Params& params, const QueryBlock& block) {
  const int64_t num_tokens = params.num_rows * params.num_tokens;
  if (!params.has_chosen || params.num_chosen >= num_tokens) return true;
  for (int64_t i = 0; i < params.num_chosen; i++) {
    const int64_t row = params.chosen[i] / params.num_tokens;
    const int64_t token = params.chosen[i] % params.num_tokens;
    if (token < block.first_token || token >= block.last_token) continue;
    for (int64_t index = 0; index < block.num_rows; index++) {
      if (block.rows[index] == row) return true;
    }
  }
  return false;
}

int64_t max_block_tokens(const Params& params) {
  const int64_t max_queries = params.cache.keys ? kMaxQueries : kMaxQueriesWithoutCache;
  return min(params.num_tokens, max(1, max_queries / params.group_size()));
}

int64_t max_block_rows(const Params& params) {
  if (!params.cache_rows) return 1;
  return max(1, kMaxQueries / (params.group_size() * max_block_tokens(params)));
}

size_t scratch_size(const Params& params) {
  const int64_t num_queries =
      max_block_rows(params) * max_block_tokens(params) * params.group_size();
  int64_t num_gathered = 2 * params.keys_per_block() + kMaxLanes;
  // Cached keys and values are read in place, unless they round to bfloat16: then both are copied,
  // at half of their size.
  if (params.cache.keys) num_gathered = params.allows_bfloat16 ? params.keys_per_block() : 0;
  return QueryState::scratch_size(params, num_queries) + num_gathered * params.head_size;
}

void prefetch_cache(const Params& params, int64_t row, int64_t kv_head) {
  const int64_t begin = params.cached_at(row, kv_head, 0);
  const int64_t size = min(params.length(row), kPrefetchedKeys) * params.head_size;
  for (int64_t i = begin; i < begin + size; i += kLineFloats) {
    __builtin_prefetch(params.cache.keys + i, 0, kToL2);
    __builtin_prefetch(params.cache.values + i, 0, kToL2);
  }
  // The hardware prefetcher stops at the end of a page. One prefetch per page loads its
  // translation.
  const int64_t end = begin + params.length(row) * params.head_size;
  const int64_t last = min(end, begin + kPrefetchedPages * kPageFloats);
  for (int64_t i = begin + size; i < last; i += kPageFloats) {
    __builtin_prefetch(params.cache.keys + i, 0, kToL2);
    __builtin_prefetch(params.cache.values + i, 0, kToL2);
  }
}

}  // namespace attention
