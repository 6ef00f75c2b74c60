#include "../attention.h"

#include <float.h>
#include <string.h>

#include "../attention_state.h"
#include "../integers.h"
#include "attention_kv.h"
#include "attention_softmax.h"
#include "attention_microkernels.h"

#include "begin_target.h"

namespace attention::SIMD {
namespace {

constexpr int kTile = SIMD_BITS == 512 ? 6 : 3;  // queries

int64_t rounded_up(int64_t x) { return div_ceil(x, kLanes) * kLanes; }

void prepare(const Call& call, const Queries& queries) {
  const Part& part = queries.part;
  const int64_t group = call.group(), heads = queries.kv_head * group * call.size;
  int64_t query = 0;
  for (int64_t index = 0; index < part.num_rows; index++) {
    const int64_t row = part.rows[index], length = call.length(row);
    for (int64_t token = part.first; token < part.last; token++) {
      const int64_t position = call.start(row) + token;
      const int64_t end = call.is_causal ? min(length, position + 1) : length;
      const int64_t begin = call.window > 0 ? max(0, position + 1 - call.window) : 0;
      if (token + kAhead < part.last) {
        fetch(call.query.of(row, token + kAhead) + heads, group * call.size);
      }
      for (int64_t head = 0; head < group; head++, query++) {
        turn(call, call.query.of(row, token) + heads + head * call.size, position, call.scale,
             queries.vectors + query * call.size);
        queries.best[query] = -FLT_MAX;
        queries.begin[query] = static_cast<int32_t>(begin);
        queries.end[query] = static_cast<int32_t>(end);
      }
    }
  }
  memset(queries.sums, 0, queries.count * call.size * sizeof(float));
  memset(queries.totals, 0, queries.count * kMaxLanes * sizeof(float));
}

// Which of a block's keys any of some queries sees.
struct Range {
  int64_t from, to;
};

Range range(const Call& call, const Queries& queries, int64_t query, int count, int64_t block) {
  int64_t from = call.block(), to = 0;
  for (int64_t q = query; q < query + count; q++) {
    from = min(from, queries.begin[q] - block);
    to = max(to, queries.end[q] - block);
  }
  return {max(from, 0) / kLanes * kLanes, min(to, call.block())};
}

// Calls step(query, Count) for tiles of queries.
template <typename Step>
INLINE void each_tile(int64_t count, const Step& step) {
  for (int64_t query = 0; query < count;) {
    const int64_t left = count - query;
    const int64_t tile = left == kTile + 1 ? left / 2 : min(left, kTile);  // not one alone
    with_static_count<kTile>(tile, [&](auto queries) { step(query, queries); });
    query += tile;
  }
}

// N: as of score, of vectors V; kColumns: keys lie side by side.
constexpr int kColumns = -1;

template <int N, typename V>
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
      score<kRows, N, V>(vectors, size, keys, seen.from, seen.to, query ? nullptr : values,
                      scores, call.block());
    }
    weigh(call, queries, query, query + kRows, block, seen.from, rounded_up(seen.to));
  });
  each_tile(queries.count, [&](int64_t query, auto rows) {
    constexpr int kRows = decltype(rows)::kCount;
    const Range seen = range(call, queries, query, kRows, block);
    if (seen.from >= seen.to) return;
    add_all_values<kRows, V>(queries.scores + query * call.block() + seen.from, call.block(),
                          values + seen.from * size, size, seen.to - seen.from,
                          queries.rescale + query, queries.sums + query * size);
  });
}

}  // namespace

void attend(const Call& call, const Part& part, int64_t kv_head, float* scratch) {
  const int64_t size = call.size, group = call.group(), row = part.rows[0];
  const int64_t length = call.length(row), first_head = kv_head * group;
  Part valid = part;
  if (call.is_fresh) {
    valid.last = max(part.first, min(part.last, length));
    for (int64_t token = valid.last; token < part.last; token++) {
      memset(call.output_of(row, token, first_head), 0, group * size * sizeof(float));
    }
    if (valid.last == part.first) return;
  }

  const Queries queries(call, valid, kv_head, scratch);
  prepare(call, queries);
  int64_t begin = length, end = 0;
  for (int64_t query = 0; query < queries.count; query++) {
    begin = min(begin, queries.begin[query]);
    end = max(end, queries.end[query]);
  }
  const int64_t cached =
      (call.source(row) * call.num_kv_heads + kv_head) * call.memory.capacity * size;
  const int64_t num_keys = call.block();
  float* gathered = scratch + Queries::scratch_size(call, queries.count);
  for (int64_t block = begin / num_keys * num_keys; block < end; block += num_keys) {
    if (!call.memory.keys) {
      float* values = gathered + num_keys * size;
      gather_columns(call, row, kv_head, block, min(block + num_keys, end), gathered, values,
                     values + num_keys * size);
      if (size % kLanes == 0) {
        attend_block<kColumns, Floats>(call, queries, block, gathered, values);
      } else {
        attend_block<kColumns, Floats8>(call, queries, block, gathered, values);
      }
      continue;
    }
    const float* keys = call.memory.keys + cached + block * size;
    const float* values = call.memory.values + cached + block * size;
    switch (size) {
      case 32: attend_block<32 / kLanes, Floats>(call, queries, block, keys, values); break;
      case 64: attend_block<64 / kLanes, Floats>(call, queries, block, keys, values); break;
      case 128: attend_block<128 / kLanes, Floats>(call, queries, block, keys, values); break;
      default: attend_block<0, Floats8>(call, queries, block, keys, values);
    }
  }
  int64_t query = 0;
  for (int64_t index = 0; index < valid.num_rows; index++) {
    for (int64_t token = valid.first; token < valid.last; token++) {
      for (int64_t head = first_head; head < first_head + group; head++, query++) {
        finish(call, head, queries, query, call.output_of(valid.rows[index], token, head));
      }
    }
  }
}

}  // namespace attention::SIMD

#include "end_target.h"
