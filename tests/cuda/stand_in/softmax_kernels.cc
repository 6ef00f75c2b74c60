// Softmax.
// Source: onnxruntime/core/providers/cuda/math/{softmax_warpwise_impl,softmax_blockwise_impl}.cuh.

#include <algorithm>

#include <math.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {
namespace {

struct Rows {
  int64_t count, size, from_stride, to_stride;
};

template <typename In, typename Out>
Computation MakeRows(const In* from, Out* to, Rows rows, bool is_log) {
  return [=] {
    using C = ComputedType<In>;
    for (int64_t row = 0; row < rows.count; ++row) {
      const In* x = from + row * rows.from_stride;
      Out* y = to + row * rows.to_stride;
      C largest = static_cast<C>(-INFINITY), sum = 0;
      for (int64_t i = 0; i < rows.size; ++i) largest = std::max(largest, static_cast<C>(x[i]));
      for (int64_t i = 0; i < rows.size; ++i) sum += static_cast<C>(exp(x[i] - largest));
      for (int64_t i = 0; i < rows.size; ++i) {
        const C shifted = x[i] - largest;
        y[i] = static_cast<Out>(is_log ? shifted - log(sum) : exp(shifted) / sum);
      }
    }
  };
}

template <typename Make>
void VisitTypes(const std::string& in, const std::string& out, const Make& make) {
  VisitFloat(in, [&](auto in_tag) {
    VisitFloat(out, [&](auto out_tag) { make(in_tag, out_tag); });
  });
}

// Template arguments: types of input, output and sums, a size, whether to return the logarithm.
// Parameters: output, input, rows, stride of rows, their size.
Computation MakeSoftmaxOfWarps(const Launch& launch) {
  const auto& arguments = launch.name.arguments;
  const int64_t stride = launch.Get<int>(3);
  const Rows rows = {launch.Get<int>(2), launch.Get<int>(4), stride, stride};
  Computation made;
  VisitTypes(arguments[0], arguments[1], [&](auto in, auto out) {
    made = MakeRows(launch.Get<const typename decltype(in)::Type*>(1),
                    launch.Get<typename decltype(out)::Type*>(0), rows, arguments[4] == "true");
  });
  return made;
}

// A thread block for each row. Template arguments: a number, types of input, sums and output, the
// epilogue. Parameters: output, input, size of rows, strides of rows of the input and output.
Computation MakeSoftmaxOfBlocks(const Launch& launch) {
  const auto& arguments = launch.name.arguments;
  const Rows rows = {launch.grid.x, launch.Get<int>(2), launch.Get<int>(3), launch.Get<int>(4)};
  const bool is_log = arguments[4].find("LogSoftMax") != std::string::npos;
  Computation made;
  VisitTypes(arguments[1], arguments[3], [&](auto in, auto out) {
    made = MakeRows(launch.Get<const typename decltype(in)::Type*>(1),
                    launch.Get<typename decltype(out)::Type*>(0), rows, is_log);
  });
  return made;
}

constexpr Kernel kKernels[] = {
    {"onnxruntime::cuda::softmax_block_forward", MakeSoftmaxOfBlocks},
    {"onnxruntime::cuda::softmax_warp_forward", MakeSoftmaxOfWarps},
    {"onnxruntime::cuda::softmax_warp_forward_resource_efficient", MakeSoftmaxOfWarps},
};

}  // namespace

const Kernels kSoftmaxKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
