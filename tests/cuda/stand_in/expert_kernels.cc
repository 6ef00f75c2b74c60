// Mixture of experts: products of rows and their experts' matrices, as a Hopper GPU computes them.
// ONNX Runtime times several kernels, and here takes the first; kernels of other GPUs do nothing.
// Source: onnxruntime/contrib_ops/cuda/llm/moe_gemm/{moe_kernels.cu,moe_gemm_kernels.h,common.h}.

#include <algorithm>
#include <map>

#include <math.h>
#include <stddef.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {
namespace {

// How a product of rows and their experts' matrices is stored; a parameter of kernels in ONNX
// Runtime 1.31.1.
struct Storing {
  int64_t num_experts;
  const void* shapes;  // of the products; identifies them
  const void* unused0[9];
  void* total;  // from here on, used if the rows of a token are summed
  int64_t total_stride;
  const void* bias;
  int64_t bias_stride;
  const float* factors;
  const void* unused1;
  const int64_t* starts;
  const int* copies;
  int64_t num_tokens;
  int kind;
};
static_assert(offsetof(Storing, total) == 88 && offsetof(Storing, kind) == 160);
constexpr int kRows = 0, kTotals = 3;

template <typename T>
struct Product {
  Storing storing;
  const int64_t* starts;
  int64_t num_experts, num_outputs, num_inputs;
  const T *rows, *weights;  // [rows, inputs], [experts, outputs, inputs]
  T* results;

  void operator()() const {
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      for (int64_t row = starts[expert]; row < starts[expert + 1]; ++row) {
        for (int64_t i = 0; i < num_outputs; ++i) {
          const T* factors = weights + (expert * num_outputs + i) * num_inputs;
          float sum = 0;
          for (int64_t j = 0; j < num_inputs; ++j) {
            sum += static_cast<float>(rows[row * num_inputs + j]) * static_cast<float>(factors[j]);
          }
          Store(expert, row, i, sum);
        }
      }
    }
  }

 private:
  void Store(int64_t expert, int64_t row, int64_t i, float sum) const {
    const Storing& s = storing;
    if (s.kind == kRows) {
      results[row * num_outputs + i] = static_cast<T>(sum);
      return;
    }
    const auto* bias = static_cast<const T*>(s.bias);
    if (bias != nullptr) sum += static_cast<float>(bias[expert * num_outputs + i]);
    T& total = static_cast<T*>(s.total)[s.copies[row] % s.num_tokens * num_outputs + i];
    total = static_cast<T>(static_cast<float>(total) + static_cast<float>(T(sum * s.factors[row])));
  }
};

// Products by the address of their shapes, which the kernel of the products takes.
std::map<const void*, Computation>& Products() {
  static std::map<const void*, Computation> products;
  return products;
}

// computeStridesTmaWarpSpecializedKernel(first rows of experts, two Storing, tokens, rows, outputs
// and inputs of both products, number of experts, two rows, two weights, ..., two results)
Computation MakeProducts(const Launch& launch) {
  const auto& arguments = launch.name.arguments;
  if (arguments[0] != arguments[1] || arguments[0] != arguments[2]) return nullptr;
  bool is_known = false;
  VisitFloat(arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    for (int i = 0; i < 2; ++i) {
      const auto storing = launch.Get<Storing>(1 + i);
      is_known = storing.kind == kRows || storing.kind == kTotals;
      if (!is_known) return;
      Products()[storing.shapes] = Product<T>{
          storing, launch.Get<const int64_t*>(0), launch.Get<int64_t>(9),
          launch.Get<int64_t>(5 + 2 * i), launch.Get<int64_t>(6 + 2 * i),
          launch.Get<const T*>(10 + i), launch.Get<const T*>(12 + i), launch.Get<T*>(21 + i)};
    }
  });
  if (!is_known) return nullptr;
  return [] {};
}

// A parameter of the kernel.
struct ProductParameters {
  int mode, unused, num_experts;
  const void* shapes;
};

Computation MakeProduct(const Launch& launch) {
  const auto found = Products().find(launch.Get<ProductParameters>(0).shapes);
  return found == Products().end() ? nullptr : found->second;
}

// Parameters of the activation after the first product.
struct ActivationParameters {
  int kind;
  const float *factors, *summands, *limits;  // [experts]
  float factor, summand, limit;
  int layout;  // order of the gates and the values that they multiply
};
constexpr int kGatesLast = 0, kByTurns = 1;

// doActivationKernel(output, input, ..., bias, whether each expert has its own, first rows of
// experts, their number, size, whether there are gates, ..., activation)
template <typename T>
struct Activation {
  T* to;
  const T *from, *bias;
  const int64_t* starts;
  int64_t num_experts, size;
  bool is_gated;
  ActivationParameters parameters;

  void operator()() const {
    const int64_t input_size = is_gated ? 2 * size : size;
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      const T* of_expert = bias == nullptr ? nullptr : bias + expert * input_size;
      for (int64_t row = starts[expert]; row < starts[expert + 1]; ++row) {
        OfRow(from + row * input_size, of_expert, to + row * size);
      }
    }
  }

 private:
  void OfRow(const T* inputs, const T* biases, T* outputs) const {
    const auto& p = parameters;
    const auto input = [&](int64_t i) {
      return static_cast<float>(inputs[i]) + (biases ? static_cast<float>(biases[i]) : 0);
    };
    for (int64_t i = 0; i < size; ++i) {
      if (!is_gated) {
        outputs[i] = static_cast<T>(std::max(input(i), 0.0f));
        continue;
      }
      const bool by_turns = p.layout == kByTurns;
      const float gate = std::min(input(by_turns ? 2 * i : size + i), p.limit);
      const float value = std::clamp(input(by_turns ? 2 * i + 1 : i), -p.limit, p.limit);
      outputs[i] = static_cast<T>(gate / (1 + expf(-p.factor * gate)) * (value + p.summand));
    }
  }
};

// ReLU without gates, SiLU with gates.
Computation MakeActivation(const Launch& launch) {
  const auto parameters = launch.Get<ActivationParameters>(12);
  const bool is_gated = launch.Get<bool>(8);
  const char* function = is_gated ? "SiLu" : "ReLu";
  if (launch.name.arguments[3].find(function) == std::string::npos ||
      (parameters.layout != kGatesLast && parameters.layout != kByTurns) ||
      parameters.factors != nullptr) {
    return nullptr;
  }
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = Activation<T>{launch.Get<T*>(0),
                         launch.Get<const T*>(1),
                         launch.Get<const T*>(3),
                         launch.Get<const int64_t*>(5),
                         launch.Get<int>(6),
                         launch.Get<int64_t>(7),
                         is_gated,
                         parameters};
  });
  return made;
}

#define EXPERTS "onnxruntime::llm::kernels::cutlass_kernels::"

constexpr Kernel kKernels[] = {
    {EXPERTS "computeStridesTmaWarpSpecializedKernel", MakeProducts},
    {EXPERTS "doActivationKernel", MakeActivation},
    {"cutlass::device_kernel", MakeProduct},
};

}  // namespace

const Kernels kExpertKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
