// What the host asks of rows of logits: called by server/backend/kernels/vocabulary.py.

#include <math.h>
#include <stdint.h>

#include "exported.h"
#include "numbers.h"
#include "vectors.h"

namespace {

constexpr int64_t kSumBlock = 512;  // values whose sum is taken in float
constexpr int64_t kTopBlock = 64;   // values that are looked at one by one if any is large enough

// The `count` largest so far, largest first; of equal ones those that came first.
class Top {
 public:
  Top(const float* x, int64_t count, int64_t* places)
      : x_(x), wanted_(count), places_(places) {}

  int64_t size() const { return size_; }
  void look(int64_t begin, int64_t end, float largest) {
    if (!wanted_ || (size_ == wanted_ && !(largest > least()))) return;
    for (int64_t i = begin; i < end; i++) {
      if (size_ < wanted_ ? x_[i] == x_[i] : x_[i] > least()) add(i);
    }
  }

 private:
  float least() const { return x_[places_[size_ - 1]]; }
  void add(int64_t place) {
    int64_t at = size_ < wanted_ ? size_++ : size_ - 1;
    for (; at > 0 && x_[places_[at - 1]] < x_[place]; at--) places_[at] = places_[at - 1];
    places_[at] = place;
  }

  const float* x_;
  int64_t wanted_, size_ = 0;
  int64_t* places_;
};

// -inf if there is none; a NaN is passed over, as the first operand of each maximum.
AVX2_FMA inline float largest_of(const float* x, int64_t size) {
  __m256 best[2] = {_mm256_set1_ps(-INFINITY), _mm256_set1_ps(-INFINITY)};
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    for (int k = 0; k < 2; k++) best[k] = _mm256_max_ps(_mm256_loadu_ps(x + i + 8 * k), best[k]);
  }
  float largest = vectors::largest(_mm256_max_ps(best[0], best[1]));
  for (; i < size; i++) largest = fmaxf(largest, x[i]);
  return largest;
}

// The largest of x [size]; `top` sees all of them.
AVX2_FMA float scan(const float* x, int64_t size, Top& top) {
  float largest = -INFINITY;
  for (int64_t begin = 0; begin < size; begin += kTopBlock) {
    const int64_t end = smaller(size, begin + kTopBlock);
    const float here = largest_of(x + begin, end - begin);
    top.look(begin, end, here);
    largest = fmaxf(largest, here);
  }
  return largest;
}

// log(sum(exp(x))) of x [size], whose largest is `best`; NaN if one is.
AVX2_FMA double log_sum_exp(const float* x, int64_t size, float best) {
  const __m256 shift = _mm256_set1_ps(best);
  const auto power = [&](int64_t i) __attribute__((always_inline, target("avx2,fma,f16c"))) {
    return vectors::exp(_mm256_sub_ps(_mm256_loadu_ps(x + i), shift));
  };
  double sum = 0.0;
  for (int64_t begin = 0; begin < size; begin += kSumBlock) {
    const int64_t end = smaller(size, begin + kSumBlock);
    __m256 parts[4];
    for (__m256& part : parts) part = _mm256_setzero_ps();
    int64_t i = begin;
    for (; i + 32 <= end; i += 32) {
      for (int k = 0; k < 4; k++) parts[k] = _mm256_add_ps(parts[k], power(i + 8 * k));
    }
    for (; i + 8 <= end; i += 8) parts[0] = _mm256_add_ps(parts[0], power(i));
    sum += vectors::sum(
        _mm256_add_ps(_mm256_add_ps(parts[0], parts[1]), _mm256_add_ps(parts[2], parts[3])));
    for (; i < end; i++) sum += expf(x[i] - best);
  }
  return best + log(sum);
}

}  // namespace

// log(sum(exp(x))) of x [size], without overflow; NaN if one is.
EXPORTED double triune_log_sum_exp(const float* x, int64_t size) {
  Top none(x, 0, nullptr);
  return log_sum_exp(x, size, scan(x, size, none));
}

// Places of the `count` largest of x [size], largest first, of equal ones the lower first. Returns
// how many there are: a NaN is none.
EXPORTED int64_t triune_top(const float* x, int64_t size, int64_t count, int64_t* places) {
  Top top(x, count, places);
  scan(x, size, top);
  return top.size();
}

// Of each row of logits [size], its log-sum-exp, and of the `count` largest the places and
// log-probabilities [rows][count]. A place is -1 where there are fewer.
EXPORTED void triune_likeliest(const float* const* rows, int64_t num_rows, int64_t size,
                               int64_t count, double* totals, int64_t* places, double* logprobs) {
  for (int64_t row = 0; row < num_rows; row++, places += count, logprobs += count) {
    const float* x = rows[row];
    Top top(x, count, places);
    const float largest = scan(x, size, top);
    totals[row] = log_sum_exp(x, size, largest);
    for (int64_t i = 0; i < count; i++) {
      if (i >= top.size()) places[i] = -1;
      logprobs[i] = places[i] < 0 ? -INFINITY : x[places[i]] - totals[row];
    }
  }
}
