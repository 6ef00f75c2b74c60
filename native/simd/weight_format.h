// This target's conversions between fp32 panels and their stored format: ../weight_format.h.
#pragma once

#include "../weight_format.h"

#include "begin_target.h"

namespace weight_format::SIMD {

Compress compress;
Decompress decompress;

}  // namespace weight_format::SIMD

#include "end_target.h"
