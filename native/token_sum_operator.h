// triune.TokenSum: the sum over the second axis, in fp32 (token_sum.h).
//
// Input: x [batch, length, size]. Output: y [batch, size], or [batch, 1, size] if the attribute
// keeps_axis, which is required, is 1.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& token_sum();

}  // namespace ort
