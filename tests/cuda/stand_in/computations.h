// What kernels of ONNX Runtime compute, by their names, on the host. They are written from what the
// kernels' operators and sources say, one element after the other. They are a library of their own,
// which the runtime loads if kernels are to compute.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include <stdint.h>
#include <string.h>

#include "names.h"
#include "state.h"

namespace stand_in {

// A launch. What it needs of the parameters is read at once: they do not outlive it.
struct Launch {
  const Name& name;
  void** parameters;
  Extent grid, block;

  template <typename T>
  T Get(int index) const {
    T value;
    memcpy(&value, parameters[index], sizeof(value));
    return value;
  }

  // An integer, of the type in the kernel's signature.
  int64_t Integer(int index) const;
};

// Of a type such as onnxruntime::cuda::OP_Add<int, int, int>: Add.
std::string OperatorOf(const std::string& type);

struct Kernel {
  const char* name;  // without arguments of templates, and without parameters
  Computation (*make)(const Launch& launch);  // null if it does not know these arguments
};

struct Kernels {
  const Kernel* first;
  int count;
};

extern const Kernels kAttentionKernels, kElementKernels, kExpertKernels, kJoinKernels,
    kNormKernels, kQuantizedKernels, kRoutingKernels, kShapeKernels, kSelectionKernels,
    kSoftmaxKernels, kUnaryKernels;

// ONNX Runtime's arrays and divisors, as they are passed to kernels.
// Source: onnxruntime/core/providers/cuda/shared_inc/cuda_utils.h and fast_divmod.h.
template <typename T, int kCapacity = 8>
struct Array {
  int32_t size;
  T values[kCapacity];
};

struct Divisor {
  int32_t value;
  uint32_t multiplier, shift;
};

}  // namespace stand_in
