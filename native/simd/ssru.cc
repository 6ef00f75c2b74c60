#include "../ssru.h"

#include "activations.h"

#include "begin_target.h"

namespace ssru::SIMD {
namespace {

using namespace ::SIMD;

// Loads and stores all lanes, or the first `count`.
struct Lanes {
  int64_t count;

  INLINE Floats load(const float* x) const {
    return count == kLanes ? ::SIMD::load(x) : load_n(x, count);
  }
  INLINE void store(float* y, Floats value) const {
    if (count == kLanes) return ::SIMD::store(y, value);
    store_n(y, value, count);
  }
};

INLINE void advance_lanes(const Step& step, int64_t i, const Lanes& lanes) {
  const Floats forget = sigmoid(lanes.load(step.forget + i));
  const Floats kept = forget * lanes.load(step.past + i);
  const Floats state = kept + (1.0f - forget) * lanes.load(step.input + i);
  lanes.store(step.state + i, state);
  lanes.store(step.y + i, lanes.load(step.residual + i) + relu(state));
}

}  // namespace

void advance(const Step& step, int64_t size) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) advance_lanes(step, i, {kLanes});
  if (i < size) advance_lanes(step, i, {size - i});
}

}  // namespace ssru::SIMD

#include "end_target.h"
