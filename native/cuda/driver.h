// The part of the CUDA driver's API that the operators need: loading the device code that is built
// into this library, and launching its kernels. The driver is opened when it is first needed, so
// that the library builds and loads on machines without one.
//
// Source: CUDA Driver API, "Library Management" and "Execution Control".
#pragma once

#include "../operator.h"

namespace cuda {

// The names in native/cuda/device/kernels.cc, in the order of Kernel.
#define FOR_EACH_KERNEL(_)                                                                \
  _(norm_1_fp16) _(norm_1_bf16) _(norm_4_fp16) _(norm_4_bf16) _(activate_fp16)            \
  _(activate_bf16) _(split_fp16) _(split_bf16) _(best_token) _(extreme_of_row)            \
  _(extremes_across)

// Those of 16-bit floats come in pairs, fp16 first.
enum Kernel : int {
  kNorm1,
  kNorm4 = kNorm1 + 2,
  kActivate = kNorm4 + 2,
  kSplit = kActivate + 2,
  kBestToken = kSplit + 2,
  kExtremeOfRow,
  kExtremesAcross,
  kNumKernels
};

// Loads the device code, once for all devices.
ort::Status* load(const ort::Api& api);

// Launches `num_blocks` blocks of `num_threads` threads on the stream of `context`. `arguments` is
// the kernel's only parameter. Does nothing without blocks.
ort::Status* launch(const ort::Api& api, const ort::KernelContext* context, int kernel,
                    int64_t num_blocks, int num_threads, void* arguments);

}  // namespace cuda
