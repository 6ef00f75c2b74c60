// One step of a simpler simple recurrent unit (SSRU; Kim et al. 2019); simd/ssru.cc has the kernel.
#pragma once

#include <stdint.h>

namespace ssru {

// With f = sigmoid(forget), element by element:
// state = f past + (1 - f) input; y = residual + max(0, state).
struct Step {
  const float *forget, *input, *past, *residual;  // [size]
  float *state, *y;                               // the same; may be `past` and `residual`
};

using Advance = void(const Step& step, int64_t size);

}  // namespace ssru
