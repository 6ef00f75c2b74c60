// Shared by the parts of the cuDNN stand-in.

#pragma once

#include <stdint.h>

#include "elements.h"
#include "library.h"

namespace stand_in {

constexpr int kMaxRank = 8;

// From cudnnDataType_t.
enum DataType { kFloat = 0, kDouble = 1, kHalf = 2, kBFloat = 9 };

struct Tensor {
  int type, rank, sizes[kMaxRank], strides[kMaxRank];
};

template <typename F>
void VisitType(int type, const F& f) {
  if (type == kFloat) f(Tag<float>());
  if (type == kDouble) f(Tag<double>());
  if (type == kHalf) f(Tag<Half>());
  if (type == kBFloat) f(Tag<BFloat>());
}

}  // namespace stand_in
