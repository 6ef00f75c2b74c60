// triune.Ssru: one step of an SSRU (ssru.h) for each row, in fp32.
//
// Inputs: forget and input, [rows, 1, size]; past, [rows, size]; residual, [rows, 1, size].
// Outputs: y, shaped as residual; state, shaped as past.
#pragma once

#include "ort_api.h"

namespace ort {

const Operator& ssru();

}  // namespace ort
