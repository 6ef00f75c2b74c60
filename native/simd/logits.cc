#include "../logits.h"

#include <math.h>

#include "../integers.h"
#include "vector_math.h"

#include "begin_target.h"

namespace logits::SIMD {
namespace {

using namespace ::SIMD;

constexpr int64_t kSumBlock = 512;  // values summed in float before the sum joins a double
constexpr int64_t kTopBlock = 64;   // values examined one by one if their maximum qualifies

// The indices of the `count` largest values of x so far, largest first, the lower first of equals.
class TopK {
 public:
  TopK(const float* x, int64_t count, int64_t* indices)
      : x_(x), wanted_(count), indices_(indices) {}

  int64_t size() const { return size_; }
  // Adds values begin .. end - 1, whose maximum is `block_max`.
  void add_block(int64_t begin, int64_t end, float block_max) {
    if (!wanted_ || (size_ == wanted_ && !(block_max > smallest()))) return;
    for (int64_t i = begin; i < end; i++) {
      if (size_ < wanted_ ? x_[i] == x_[i] : x_[i] > smallest()) insert(i);
    }
  }

 private:
  float smallest() const { return x_[indices_[size_ - 1]]; }
  void insert(int64_t index) {
    int64_t at = size_ < wanted_ ? size_++ : size_ - 1;
    for (; at > 0 && x_[indices_[at - 1]] < x_[index]; at--) indices_[at] = indices_[at - 1];
    indices_[at] = index;
  }

  const float* x_;
  int64_t wanted_, size_ = 0;
  int64_t* indices_;
};

// The maximum of x [size]; -inf without numbers. Ignores NaN, the first operand of each max.
INLINE float block_max(const float* x, int64_t size) {
  Floats best[2] = {-INFINITY, -INFINITY};
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    for (int k = 0; k < 2; k++) best[k] = max(load(x + i + k * kLanes), best[k]);
  }
  float found = reduce_max(max(best[0], best[1]));
  for (; i < size; i++) found = fmaxf(found, x[i]);
  return found;
}

// Adds all values of x [size] to `top`; returns the maximum.
float scan(const float* x, int64_t size, TopK& top) {
  float row_max = -INFINITY;
  for (int64_t begin = 0; begin < size; begin += kTopBlock) {
    const int64_t end = min(size, begin + kTopBlock);
    const float found = block_max(x + begin, end - begin);
    top.add_block(begin, end, found);
    row_max = fmaxf(row_max, found);
  }
  return row_max;
}

// log(sum(exp(x))) of x [size], whose maximum is `row_max`; NaN if x has one.
double log_sum_exp_below(const float* x, int64_t size, float row_max) {
  const auto shifted_exp = [&](int64_t i) __attribute__((always_inline)) {
    return exp(load(x + i) - row_max);
  };
  double total = 0.0;
  for (int64_t begin = 0; begin < size; begin += kSumBlock) {
    const int64_t end = min(size, begin + kSumBlock);
    Floats sums[4] = {};
    int64_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      for (int k = 0; k < 4; k++) sums[k] += shifted_exp(i + k * kLanes);
    }
    for (; i + kLanes <= end; i += kLanes) sums[0] += shifted_exp(i);
    total += reduce_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < end; i++) total += expf(x[i] - row_max);
  }
  return row_max + log(total);
}

}  // namespace

double log_sum_exp(const float* x, int64_t size) {
  TopK none(x, 0, nullptr);
  return log_sum_exp_below(x, size, scan(x, size, none));
}

int64_t top_indices(const float* x, int64_t size, int64_t count, int64_t* indices) {
  TopK top(x, count, indices);
  scan(x, size, top);
  return top.size();
}

void top_tokens(const float* const* rows, int64_t num_rows, int64_t size, int64_t count,
                double* log_sum_exps, int64_t* indices, double* logprobs) {
  for (int64_t row = 0; row < num_rows; row++, indices += count, logprobs += count) {
    const float* x = rows[row];
    TopK top(x, count, indices);
    const float row_max = scan(x, size, top);
    log_sum_exps[row] = log_sum_exp_below(x, size, row_max);
    for (int64_t i = 0; i < count; i++) {
      if (i >= top.size()) indices[i] = -1;
      logprobs[i] = indices[i] < 0 ? -INFINITY : x[indices[i]] - log_sum_exps[row];
    }
  }
}

}  // namespace logits::SIMD

#include "end_target.h"
