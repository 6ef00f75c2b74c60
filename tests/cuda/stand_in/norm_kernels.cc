// LayerNorm and RMSNorm, optionally after adding a residual and a bias.
// Source: onnxruntime/core/providers/cuda/nn/layer_norm_impl.cu.

#include <math.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {
namespace {

// Parameters: output, means, inverse standard deviations (may be null), input, rows, columns,
// epsilon, scale, bias (may be null), unused, residual, bias of the input, their sum (all may be
// null). The last template argument: whether it is RMSNorm.
Computation MakeNorm(const Launch& launch) {
  const bool is_rms = launch.name.arguments[3] == "true";
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [is_rms, to = launch.Get<T*>(0), from = launch.Get<const T*>(3),
            num_rows = launch.Get<int>(4), size = launch.Get<int>(5),
            epsilon = launch.Get<float>(6), scale = launch.Get<const T*>(7),
            bias = launch.Get<const T*>(8), residual = launch.Get<const T*>(10),
            added = launch.Get<const T*>(11), sums = launch.Get<T*>(12)] {
      std::vector<float> x(static_cast<size_t>(size));
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t first = row * size;
        float sum = 0, squares = 0;
        for (int64_t i = 0; i < size; ++i) {
          float& value = x[static_cast<size_t>(i)];
          value = static_cast<float>(from[first + i]);
          if (residual) value += static_cast<float>(residual[first + i]);
          if (added) value += static_cast<float>(added[i]);
          if (sums) sums[first + i] = static_cast<T>(value);
          sum += value;
        }
        const float mean = is_rms ? 0 : sum / static_cast<float>(size);
        for (const float value : x) squares += (value - mean) * (value - mean);
        const float factor = 1 / sqrtf(squares / static_cast<float>(size) + epsilon);
        for (int64_t i = 0; i < size; ++i) {
          float value = (x[static_cast<size_t>(i)] - mean) * factor;
          if (scale) value *= static_cast<float>(scale[i]);
          if (bias) value += static_cast<float>(bias[i]);
          to[first + i] = static_cast<T>(value);
        }
      }
    };
  });
  return made;
}

constexpr Kernel kKernels[] = {{"onnxruntime::cuda::cuApplyLayerNorm", MakeNorm}};

}  // namespace

const Kernels kNormKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
