// ONNX Runtime's CUDA kernels, by name, on the host. They follow the definitions of the operators
// and the sources of the kernels, one element after another. They are in a library of their own,
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

// A launch of a kernel. A Computation copies what it needs: parameters do not outlive the launch.
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

  // An integer parameter, whose type the kernel's signature gives.
  int64_t Integer(int index) const;
};

// The operator in the name of a type: Add in onnxruntime::cuda::OP_Add<int, int, int>.
std::string OperatorOf(const std::string& type);

struct Kernel {
  const char* name;  // without template arguments and parameters
  Computation (*make)(const Launch& launch);  // returns null for unsupported arguments
};

struct Kernels {
  const Kernel* first;
  int count;
};

extern const Kernels kAttentionKernels, kElementKernels, kExpertKernels, kJoinKernels,
    kNormKernels, kQuantizedKernels, kRoutingKernels, kShapeKernels, kSelectionKernels,
    kSoftmaxKernels, kUnaryKernels;

// ONNX Runtime's arrays and divisors, as kernels take them.
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
