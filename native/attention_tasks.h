// Divides attention into tasks for ONNX Runtime's threads.
#pragma once

#include "attention.h"
#include "operator.h"

namespace ort {

// Writes new keys and values to the cache and computes the output.
Status* run_attention(const Api& api, const KernelContext* context,
                      const attention::Params& params);

}  // namespace ort
