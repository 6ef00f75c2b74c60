#include "attention.h"

#include <float.h>
#include <string.h>

#include "attention_memory.h"
#include "attention_softmax.h"
#include "attention_tiles.h"
#include "numbers.h"

namespace attention {
namespace {

// Queries of a group's heads at a time. Without a memory, keys are gathered for each time.
constexpr int64_t kQueries = 48, kQueriesWithoutMemory = 128;

int64_t rounded_up(int64_t x) { return ceil_div(x, kLanes) * kLanes; }

void load(const Call& call, const Queries& queries) {
  const int64_t group = call.group(), length = call.length(queries.row);
  int64_t query = 0;
  for (int64_t token = queries.first; token < queries.last; token++) {
    const int64_t position = call.start(queries.row) + token;
    const int64_t end = call.is_causal ? smaller(length, position + 1) : length;
    const int64_t begin = call.window > 0 ? larger(0, position + 1 - call.window) : 0;
    const int64_t heads = queries.kv_head * group * call.size;
    if (token + kAhead < queries.last) {
      fetch(call.query.of(queries.row, token + kAhead) + heads, group * call.size);
    }
    for (int64_t head = 0; head < group; head++, query++) {
      turn(call, call.query.of(queries.row, token) + heads + head * call.size, position, call.scale,
           queries.vectors + query * call.size);
      queries.best[query] = -FLT_MAX;
      queries.begin[query] = static_cast<int32_t>(begin);
      queries.end[query] = static_cast<int32_t>(end);
    }
  }
  memset(queries.sums, 0, queries.count * call.size * sizeof(float));
  memset(queries.totals, 0, queries.count * kLanes * sizeof(float));
}

// Which of a block's keys any of some queries sees.
struct Range {
  int64_t from, to;
};

Range range(const Call& call, const Queries& queries, int64_t query, int count, int64_t block) {
  int64_t from = call.block(), to = 0;
  for (int64_t q = query; q < query + count; q++) {
    from = smaller(from, queries.begin[q] - block);
    to = larger(to, queries.end[q] - block);
  }
  return {larger(from, 0) / kLanes * kLanes, smaller(to, call.block())};
}

template <int R>
struct Rows {
  static constexpr int kCount = R;
};

// Calls step(query, Rows) for tiles of up to three queries.
template <typename Step>
inline void each_tile(int64_t count, const Step& step) {
  int64_t query = 0;
  for (; count - query >= 3 && count - query != 4; query += 3) step(query, Rows<3>());
  for (; count - query >= 2; query += 2) step(query, Rows<2>());
  if (query < count) step(query, Rows<1>());
}

// N: as of score; kColumns: keys lie side by side.
constexpr int kColumns = -1;

template <int N>
void attend_block(const Call& call, const Queries& queries, int64_t block, const float* keys,
                  const float* values) {
  const int64_t size = call.size;
  each_tile(queries.count, [&](int64_t query, auto rows) {
    constexpr int kRows = decltype(rows)::kCount;
    const Range seen = range(call, queries, query, kRows, block);
    if (seen.from >= seen.to) return;
    const float* vectors = queries.vectors + query * size;
    float* scores = queries.scores + query * call.block();
    if constexpr (N == kColumns) {
      score_all_columns<kRows>(vectors, size, keys, seen.from, rounded_up(seen.to), scores,
                               call.block());
    } else {
      score<kRows, N>(vectors, size / kLanes, keys, seen.from, seen.to, query ? nullptr : values,
                      scores, call.block());
    }
    for (int64_t q = query; q < query + kRows; q++) {
      weigh(call, queries, q, block, seen.from, rounded_up(seen.to));
    }
  });
  each_tile(queries.count, [&](int64_t query, auto rows) {
    constexpr int kRows = decltype(rows)::kCount;
    const Range seen = range(call, queries, query, kRows, block);
    if (seen.from >= seen.to) return;
    add_all_values<kRows>(queries.scores + query * call.block() + seen.from, call.block(),
                          values + seen.from * size, size, seen.to - seen.from,
                          queries.rescale + query, queries.sums + query * size);
  });
}

}  // namespace

int64_t tokens_at_once(const Call& call) {
  const int64_t most = call.memory.keys ? kQueries : kQueriesWithoutMemory;
  return smaller(call.num_tokens, larger(1, most / call.group()));
}

size_t scratch_size(const Call& call) {
  const int64_t num_queries = tokens_at_once(call) * call.group();
  const int64_t num_gathered = call.memory.keys ? 0 : 2 * call.block() + kLanes;
  return Queries::scratch_size(call, num_queries) + num_gathered * call.size;
}

void attend(const Call& call, int64_t row, int64_t kv_head, int64_t first, int64_t last,
            float* scratch) {
  const int64_t size = call.size, group = call.group(), length = call.length(row);
  const int64_t stride = call.num_heads * size;
  float* output = call.output + row * call.num_tokens * stride + kv_head * group * size;
  const int64_t valid = call.is_fresh && call.num_new ? larger(first, smaller(last, length)) : last;
  for (int64_t token = valid; token < last; token++) {
    memset(output + token * stride, 0, group * size * sizeof(float));
  }
  if (valid == first) return;

  const Queries queries(call, row, kv_head, first, valid, scratch);
  load(call, queries);
  int64_t begin = length, end = 0;
  for (int64_t query = 0; query < queries.count; query++) {
    begin = smaller(begin, queries.begin[query]);
    end = larger(end, queries.end[query]);
  }
  const int64_t cached = (row * call.num_kv_heads + kv_head) * call.memory.capacity * size;
  const int64_t num_keys = call.block();
  float* gathered = scratch + Queries::scratch_size(call, queries.count);
  for (int64_t block = begin / num_keys * num_keys; block < end; block += num_keys) {
    if (!call.memory.keys) {
      float* values = gathered + num_keys * size;
      gather_columns(call, row, kv_head, block, smaller(block + num_keys, end), gathered, values,
                     values + num_keys * size);
      attend_block<kColumns>(call, queries, block, gathered, values);
      continue;
    }
    const float* keys = call.memory.keys + cached + block * size;
    const float* values = call.memory.values + cached + block * size;
    switch (size) {
      case 32: attend_block<4>(call, queries, block, keys, values); break;
      case 64: attend_block<8>(call, queries, block, keys, values); break;
      case 128: attend_block<16>(call, queries, block, keys, values); break;
      default: attend_block<0>(call, queries, block, keys, values);
    }
  }
  for (int64_t query = 0; query < queries.count; query++) {
    const int64_t head = query % group;
    finish(call, kv_head * group + head, queries, query,
           output + (first + query / group) * stride + head * size);
  }
}

}  // namespace attention
