// The tokens with the largest logits of each row, for beam search and log-probabilities.
#pragma once

#include "best_token.h"

namespace device {

// One block per row. Each warp keeps the best of its tokens that are not yet written. The best of
// all warps is written next, and its warp searches again.
inline void find_top_tokens(const TopTokensArguments& a) {
  SHARED float logits[kMaxWarps];
  SHARED int tokens[kMaxWarps];
  const Candidate none = {-__builtin_inff(), a.vocabulary};
  expect_threads<kMaxThreads, 1>();
  let_next_start();
  wait_for_previous();
  const long index = a.rows ? a.rows[block()] : static_cast<long>(block());
  const float* row = a.logits + index * a.vocabulary;
  const auto load_one = [&](int token) { return Logit::of(row, a.suppressed, token); };
  const auto value_of = [&](Logit logit) {
    return logit.is_suppressed ? a.suppressed_logit : logit.value;
  };
  float* top = a.top + static_cast<long>(block()) * a.width;

  // Keeps the best of the warp's tokens that rank after `last`.
  const auto keep_best = [&](bool is_first, Candidate last) {
    Candidate best = none;
    for_each_loaded(thread(), a.vocabulary, num_threads(), load_one, [&](int token, Logit logit) {
      const Candidate found = {value_of(logit), token};
      if ((is_first || comes_before(last, found)) && comes_before(found, best)) best = found;
    });
    best = best_of_warp(best);
    if (lane() == 0) {
      logits[warp()] = best.logit;
      tokens[warp()] = best.token;
    }
  };
  const auto best_of_block = [&] {
    wait_for_block();
    const bool has_warp = lane() < num_warps();
    const Candidate best = has_warp ? Candidate{logits[lane()], tokens[lane()]} : none;
    return best_of_warp(best);
  };

  keep_best(true, none);
  Candidate best = best_of_block();
  float sum = 0;
  for_each_loaded(thread(), a.vocabulary, num_threads(), load_one,
                  [&](int, Logit logit) { sum += exp(value_of(logit) - best.logit); });
  sum = sum_over_block(sum);
  if (thread() == 0) {
    top[2 * a.count] = sum;
    if (a.targets) {
      const long target = a.targets[block()];
      const bool is_token = target >= 0 && target < a.vocabulary;
      top[2 * a.count + 1] =
          is_token ? value_of(load_one(static_cast<int>(target))) : __builtin_nanf("");
    }
  }
  for (int i = 0; i < a.count; i++) {
    if (thread() == 0) {
      top[i] = best.logit;
      top[a.count + i] = static_cast<float>(best.token);
    }
    if (i == a.count - 1) break;
    wait_for_block();  // all threads have read what is overwritten
    if (warp() == best.token % num_threads() / kWarp) keep_best(false, best);
    best = best_of_block();
  }
}

}  // namespace device
