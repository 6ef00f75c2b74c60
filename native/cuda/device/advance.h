// Prepares the next step of greedy decoding: writes each row's new token and its number of cached
// tokens.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

// One thread per row.
inline void advance(const AdvanceArguments& a) {
  expect_threads<256, 4>();
  let_next_start();
  wait_for_previous();
  const int row = block() * num_threads() + thread();
  if (row >= a.num_rows) return;
  const int is_live = a.is_live[row];
  const long best = a.best_tokens[row];
  const int num_cached = a.num_cached_tokens[row];
  a.next_token_ids[row] = is_live && best > 0 ? best : 0;
  a.next_num_cached_tokens[row] = num_cached + is_live;
}

}  // namespace device
