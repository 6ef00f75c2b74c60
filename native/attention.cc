#include "attention.h"

#include "attention_state.h"
#include "integers.h"

namespace attention {
namespace {

// Queries of a group's heads at a time. Without a memory, keys are gathered for each time.
constexpr int64_t kQueries = 48, kQueriesWithoutMemory = 128;

// Of a row's keys and values: in more, the processor sees by itself what will be read.
constexpr int64_t kFetched = 48;
constexpr int kSecondCache = 2;  // of what __builtin_prefetch fetches to

}  // namespace

int64_t tokens_at_once(const Call& call) {
  const int64_t most = call.memory.keys ? kQueries : kQueriesWithoutMemory;
  return min(call.num_tokens, max(1, most / call.group()));
}

int64_t rows_at_once(const Call& call) {
  return call.sources ? max(1, kQueries / (call.group() * tokens_at_once(call))) : 1;
}

size_t scratch_size(const Call& call) {
  const int64_t num_queries = rows_at_once(call) * tokens_at_once(call) * call.group();
  const int64_t num_gathered = call.memory.keys ? 0 : 2 * call.block() + kMaxLanes;
  return Queries::scratch_size(call, num_queries) + num_gathered * call.size;
}

void fetch(const Call& call, int64_t row, int64_t kv_head) {
  const int64_t at =
      (call.source(row) * call.num_kv_heads + kv_head) * call.memory.capacity * call.size;
  const int64_t size = min(call.length(row), kFetched) * call.size;
  for (int64_t i = at; i < at + size; i += kLine) {
    __builtin_prefetch(call.memory.keys + i, 0, kSecondCache);
    __builtin_prefetch(call.memory.values + i, 0, kSecondCache);
  }
}

}  // namespace attention
