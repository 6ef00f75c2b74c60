#include "../logits.h"

#include <math.h>

#include "../integers.h"
#include "vectors.h"

#include "begin_target.h"

namespace vocabulary::SIMD {
namespace {

using namespace ::SIMD;

constexpr int64_t kSumBlock = 512;  // values whose sum is taken in float
constexpr int64_t kTopBlock = 64;   // values that are looked at one by one if any is large enough

// The `count` largest so far, largest first; of equal ones those that came first.
class Largest {
 public:
  Largest(const float* x, int64_t count, int64_t* places)
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
INLINE float largest_of(const float* x, int64_t size) {
  Floats best[2] = {-INFINITY, -INFINITY};
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    for (int k = 0; k < 2; k++) best[k] = max(load(x + i + k * kLanes), best[k]);
  }
  float found = largest(max(best[0], best[1]));
  for (; i < size; i++) found = fmaxf(found, x[i]);
  return found;
}

// The largest of x [size]; `top` sees all of them.
float scan(const float* x, int64_t size, Largest& top) {
  float largest = -INFINITY;
  for (int64_t begin = 0; begin < size; begin += kTopBlock) {
    const int64_t end = min(size, begin + kTopBlock);
    const float here = largest_of(x + begin, end - begin);
    top.look(begin, end, here);
    largest = fmaxf(largest, here);
  }
  return largest;
}

// log(sum(exp(x))) of x [size], whose largest is `best`; NaN if one is.
double log_sum_exp_of(const float* x, int64_t size, float best) {
  const auto power = [&](int64_t i) __attribute__((always_inline)) {
    return exp(load(x + i) - best);
  };
  double total = 0.0;
  for (int64_t begin = 0; begin < size; begin += kSumBlock) {
    const int64_t end = min(size, begin + kSumBlock);
    Floats parts[4] = {};
    int64_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      for (int k = 0; k < 4; k++) parts[k] += power(i + k * kLanes);
    }
    for (; i + kLanes <= end; i += kLanes) parts[0] += power(i);
    total += sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
    for (; i < end; i++) total += expf(x[i] - best);
  }
  return best + log(total);
}

}  // namespace

double log_sum_exp(const float* x, int64_t size) {
  Largest none(x, 0, nullptr);
  return log_sum_exp_of(x, size, scan(x, size, none));
}

int64_t top(const float* x, int64_t size, int64_t count, int64_t* places) {
  Largest found(x, count, places);
  scan(x, size, found);
  return found.size();
}

void likeliest(const float* const* rows, int64_t num_rows, int64_t size,
                               int64_t count, double* totals, int64_t* places, double* logprobs) {
  for (int64_t row = 0; row < num_rows; row++, places += count, logprobs += count) {
    const float* x = rows[row];
    Largest found(x, count, places);
    const float largest = scan(x, size, found);
    totals[row] = log_sum_exp_of(x, size, largest);
    for (int64_t i = 0; i < count; i++) {
      if (i >= found.size()) places[i] = -1;
      logprobs[i] = places[i] < 0 ? -INFINITY : x[places[i]] - totals[row];
    }
  }
}

}  // namespace vocabulary::SIMD

#include "end_target.h"
