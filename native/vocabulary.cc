// What the host asks of a row of logits: called by server/backend/kernels/vocabulary.py.

#include <math.h>
#include <stdint.h>

#include "numbers.h"
#include "vectors.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

constexpr int64_t kSumBlock = 512;  // values whose sum is taken in float
constexpr int64_t kTopBlock = 64;   // values that are looked at one by one if any is large enough

// -inf if there is none; a NaN is passed over.
AVX2_FMA inline float maximum(const float* x, int64_t size) {
  __m256 best = _mm256_set1_ps(-INFINITY);
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) best = _mm256_max_ps(_mm256_loadu_ps(x + i), best);
  float largest = vectors::largest(best);
  for (; i < size; i++) largest = fmaxf(largest, x[i]);
  return largest;
}

AVX2_FMA inline bool exceeds(const float* x, int64_t size, float least) {
  const __m256 bound = _mm256_set1_ps(least);
  __m256 any = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    any = _mm256_or_ps(any, _mm256_cmp_ps(_mm256_loadu_ps(x + i), bound, _CMP_GT_OQ));
  }
  bool found = _mm256_movemask_ps(any);
  for (; i < size; i++) found |= x[i] > least;
  return found;
}

// The `count` largest so far, largest first; of equal ones those that came first.
class Top {
 public:
  Top(const float* x, int64_t count, int64_t* places)
      : x_(x), wanted_(count), places_(places) {}

  float least() const { return size_ < wanted_ ? -INFINITY : x_[places_[size_ - 1]]; }
  bool takes(float value) const { return size_ < wanted_ ? value == value : value > least(); }
  void add(int64_t place) {
    int64_t at = size_ < wanted_ ? size_++ : size_ - 1;
    for (; at > 0 && x_[places_[at - 1]] < x_[place]; at--) places_[at] = places_[at - 1];
    places_[at] = place;
  }
  int64_t size() const { return size_; }

 private:
  const float* x_;
  int64_t wanted_, size_ = 0;
  int64_t* places_;
};

}  // namespace

// log(sum(exp(x))) of x [size], without overflow; NaN if one is.
EXPORTED AVX2_FMA double triune_log_sum_exp(const float* x, int64_t size) {
  const float best = maximum(x, size);
  const __m256 shift = _mm256_set1_ps(best);
  double sum = 0.0;
  for (int64_t begin = 0; begin < size; begin += kSumBlock) {
    const int64_t end = smaller(size, begin + kSumBlock);
    __m256 part = _mm256_setzero_ps();
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
      part = _mm256_add_ps(part, vectors::exp(_mm256_sub_ps(_mm256_loadu_ps(x + i), shift)));
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, part);
    for (float lane : lanes) sum += lane;
    for (; i < end; i++) sum += expf(x[i] - best);
  }
  return best + log(sum);
}

// Places of the `count` largest of x [size], largest first, of equal ones the lower first. Returns
// how many there are: a NaN is none.
EXPORTED AVX2_FMA int64_t triune_top(const float* x, int64_t size, int64_t count,
                                     int64_t* places) {
  Top top(x, count, places);
  for (int64_t begin = 0; count && begin < size; begin += kTopBlock) {
    const int64_t end = smaller(size, begin + kTopBlock);
    if (top.size() == count && !exceeds(x + begin, end - begin, top.least())) continue;
    for (int64_t i = begin; i < end; i++) {
      if (top.takes(x[i])) top.add(i);
    }
  }
  return top.size();
}
