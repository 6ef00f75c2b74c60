// Greedy decoding: the token with the largest logit of each row.
#pragma once

#include "arguments.h"
#include "thread.h"

namespace device {

constexpr int kNotFinite = -1;

struct Candidate {
  float logit;
  int token;
};

struct Logit {
  float value;
  uint is_suppressed;

  // `suppressed` is null, or 1 for suppressed tokens.
  static Logit of(const float* row, const unsigned char* suppressed, int token) {
    return {load(row + token), load_byte_if(suppressed, suppressed + token)};
  }
};

// Whether `a` ranks before `b`: larger, or equal with a lower id. NaN ranks first.
inline bool comes_before(Candidate a, Candidate b) {
  const bool a_is_nan = a.logit != a.logit, b_is_nan = b.logit != b.logit;
  if (a_is_nan != b_is_nan) return a_is_nan;
  if (!a_is_nan && a.logit != b.logit) return a.logit > b.logit;
  return a.token < b.token;
}

inline Candidate best_of_warp(Candidate best) {
  for (int distance = kWarp / 2; distance; distance /= 2) {
    const Candidate other = {shuffle_xor(best.logit, distance), shuffle_xor(best.token, distance)};
    if (comes_before(other, best)) best = other;
  }
  return best;
}

// One block per row. Writes the lowest id among the largest logits, or kNotFinite if a logit is NaN
// or +inf, or if all are -inf.
inline void find_best_token(const BestTokenArguments& a) {
  SHARED float logits[kMaxWarps];
  SHARED int tokens[kMaxWarps];
  expect_threads<kMaxThreads, 1>();
  let_next_start();
  wait_for_previous();
  const float* row = a.logits + static_cast<long>(block()) * a.vocabulary;
  Candidate best = {-__builtin_inff(), a.vocabulary};
  const auto load_one = [&](int token) { return Logit::of(row, a.suppressed, token); };
  for_each_loaded(thread(), a.vocabulary, num_threads(), load_one, [&](int token, Logit found) {
    if (found.is_suppressed && found.value == found.value) return;
    const Candidate candidate = {found.value, token};
    if (comes_before(candidate, best)) best = candidate;
  });
  best = best_of_warp(best);
  if (lane() == 0) {
    logits[warp()] = best.logit;
    tokens[warp()] = best.token;
  }
  wait_for_block();
  if (warp() != 0) return;
  best = lane() < num_warps() ? Candidate{logits[lane()], tokens[lane()]}
                              : Candidate{-__builtin_inff(), a.vocabulary};
  best = best_of_warp(best);
  const bool is_finite = best.logit - best.logit == 0.f;
  if (lane() == 0) a.tokens[block()] = is_finite ? best.token : kNotFinite;
}

}  // namespace device
