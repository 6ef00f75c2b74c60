// Unary operators and casts.
// Source: onnxruntime/core/providers/cuda/cu_inc/{unary_elementwise_impl,common}.cuh,
// math/unary_elementwise_ops_impl.cu, activation/activations_impl.h, tensor/gelu_impl.cu;
// onnxruntime/contrib_ops/cuda/activation/activations_impl.cu.

#include <math.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {
namespace {

template <typename Out, typename In>
Out Convert(In value) {
  return static_cast<Out>(static_cast<ComputedType<In>>(value));
}

template <>
Half Convert<Half, BFloat>(BFloat value) {
  return static_cast<Half>(static_cast<float>(value));
}

template <typename T>
using Unary = std::function<T(T)>;

// Returns an empty function for an unknown operator.
template <typename T>
Unary<T> UnaryOfNumbers(const std::string& name) {
  if (name == "Neg") return [](T x) { return static_cast<T>(-x); };
  if (name == "Abs") return [](T x) { return x < T(0) ? static_cast<T>(-x) : x; };
  if (name == "Sign") return [](T x) { return static_cast<T>((x > T(0)) - (x < T(0))); };
  return nullptr;
}

// The parameters of an operator precede those of the kernel.
template <typename T>
Unary<T> UnaryOfFloats(const std::string& name, const float* parameters) {
  if (name == "Exp") return [](T x) { return static_cast<T>(exp(x)); };
  if (name == "Log") return [](T x) { return static_cast<T>(log(x)); };
  if (name == "Sqrt") return [](T x) { return static_cast<T>(sqrt(x)); };
  if (name == "Tanh") return [](T x) { return static_cast<T>(tanh(x)); };
  if (name == "Erf") return [](T x) { return static_cast<T>(erf(x)); };
  if (name == "Sigmoid") return [](T x) { return static_cast<T>(1 / (1 + exp(-x))); };
  if (name == "Relu") return [](T x) { return x > 0 ? x : T(0); };
  if (name == "Floor") return [](T x) { return static_cast<T>(floor(x)); };
  if (name == "Ceil") return [](T x) { return static_cast<T>(ceil(x)); };
  if (name == "Reciprocal") return [](T x) { return static_cast<T>(1 / x); };
  if (name == "Cos") return [](T x) { return static_cast<T>(cos(x)); };
  if (name == "Sin") return [](T x) { return static_cast<T>(sin(x)); };
  if (name == "Gelu") return [](T x) { return static_cast<T>(x / 2 * (1 + erf(x * M_SQRT1_2))); };
  if (name == "QuickGelu") {
    return [factor = *parameters](T x) { return static_cast<T>(x / (1 + exp(-factor * x))); };
  }
  return UnaryOfNumbers<T>(name);
}

Computation MakeCast(const Launch& launch) {
  const auto count = launch.Integer(3);
  Computation made;
  Visit(launch.name.arguments[0], [&](auto in) {
    Visit(launch.name.arguments[1], [&](auto out) {
      using In = typename decltype(in)::Type;
      using Out = typename decltype(out)::Type;
      made = [from = launch.Get<const In*>(0), to = launch.Get<Out*>(1), count] {
        for (int64_t i = 0; i < count; ++i) to[i] = Convert<Out>(from[i]);
      };
    });
  });
  return made;
}

template <typename T, typename C>
Computation MakeUnaryOf(const Launch& launch, const Unary<C>& run) {
  if (!run) return nullptr;
  return [run, from = launch.Get<const T*>(0), to = launch.Get<T*>(1), count = launch.Integer(3)] {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(run(from[i]));
  };
}

// Parameters: input, output, operator, count.
Computation MakeUnary(const Launch& launch) {
  const std::string& type = launch.name.arguments[0];
  const std::string name = OperatorOf(launch.name.arguments[2]);
  if (name == "Cast") return MakeCast(launch);
  if (name == "Not") {
    return MakeUnaryOf<bool>(launch, Unary<bool>([](bool x) { return !x; }));
  }
  Computation made;
  VisitFloat(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const auto* parameters = static_cast<const float*>(launch.parameters[2]);
    made = MakeUnaryOf<T>(launch, UnaryOfFloats<ComputedType<T>>(name, parameters));
  });
  if (type == "bool") return made;
  VisitInteger(type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = MakeUnaryOf<T>(launch, UnaryOfNumbers<T>(name));
  });
  return made;
}

constexpr Kernel kKernels[] = {
    {"onnxruntime::cuda::_UnaryElementWise", MakeUnary},
};

}  // namespace

const Kernels kUnaryKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
