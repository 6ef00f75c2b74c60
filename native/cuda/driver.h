// The part of the CUDA driver API that the operators need: it loads the device code embedded in
// this library and launches its kernels. The driver is opened on first use, so the library builds
// and loads on machines without one.
//
// There are two images of the device code: one for compute capability 8.0, and one for 9.0, which
// is used if all devices of the machine have it. With the latter, a kernel may start while the
// previous one on the stream still runs (programmatic dependent launch). To see what earlier
// kernels wrote, and to overwrite nothing that they still read, each thread of every kernel calls
// wait_for_previous() before its first access to memory; only weights, which no kernel writes, may
// be read before. The wait lasts until the previous kernel has ended. That kernel has itself waited
// for the one before it, so all earlier kernels have ended, ours or not. Kernels of other libraries
// are launched without this attribute and start after ours have ended.
//
// Source: CUDA Driver API, "Library Management", "Execution Control" and "cuLaunchKernelEx"; CUDA
// C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
#pragma once

#include "../operator.h"

namespace cuda {

// The kernels' names in native/cuda/device/kernels.cc, in the order of Kernel.
#define FOR_EACH_KERNEL(_)                                                                \
  _(norm_1_fp16) _(norm_1_bf16) _(norm_4_fp16) _(norm_4_bf16) _(activate_fp16)            \
  _(activate_bf16) _(split_fp16) _(split_bf16) _(linear_8_fp16) _(linear_8_bf16)          \
  _(linear_16_fp16) _(linear_16_bf16) _(linear_norm_fp16) _(linear_norm_bf16)             \
  _(attend_32_fp16) _(attend_32_bf16) _(attend_64_fp16) _(attend_64_bf16)                 \
  _(attend_96_fp16) _(attend_96_bf16) _(attend_128_fp16) _(attend_128_bf16)               \
  _(attend_256_fp16) _(attend_256_bf16)                                                   \
  _(combine_parts_fp16) _(combine_parts_bf16)                                             \
  _(attend_text_32_fp16) _(attend_text_32_bf16) _(attend_text_64_fp16)                    \
  _(attend_text_64_bf16) _(attend_text_96_fp16) _(attend_text_96_bf16)                    \
  _(attend_text_128_fp16) _(attend_text_128_bf16)                                         \
  _(pool_fp16) _(pool_bf16) _(key_ranges)                                                 \
  _(best_token) _(top_tokens) _(advance_rows) _(copy_parts) _(extreme_of_row)             \
  _(extremes_across)

// Kernels of 16-bit floats come in pairs: fp16, then bf16.
enum Kernel : int {
  kNorm1,
  kNorm4 = kNorm1 + 2,
  kActivate = kNorm4 + 2,
  kSplit = kActivate + 2,
  kLinear8 = kSplit + 2,
  kLinear16 = kLinear8 + 2,
  kLinearNorm = kLinear16 + 2,
  kAttend = kLinearNorm + 2,
  kCombineParts = kAttend + 10,
  kAttendText = kCombineParts + 2,
  kPool = kAttendText + 8,
  kKeyRanges = kPool + 2,
  kBestToken,
  kTopTokens,
  kAdvance,
  kCopyParts,
  kExtremeOfRow,
  kExtremesAcross,
  kNumKernels
};

// Loads the device code, once for all devices. Returns null, or an error message.
const char* load();

// Launches `num_blocks` blocks of `num_threads` threads on a stream; does nothing for 0 blocks.
// `arguments` points to the kernel's only parameter. Returns null, or an error message.
const char* launch(void* stream, int kernel, int64_t num_blocks, int num_threads, void* arguments);

// The same on the stream of `context`.
ort::Status* launch(const ort::Api& api, const ort::KernelContext* context, int kernel,
                    int64_t num_blocks, int num_threads, void* arguments);

}  // namespace cuda
