// Elementwise operators, with broadcasting.
// Source: onnxruntime/core/providers/cuda/cu_inc/binary_elementwise_impl.cuh, fpgeneric.cu,
// tensor/where_impl.cu, tensor/expand_impl.cu, math/clip_impl.cu.

#include <math.h>

#include "broadcast.h"
#include "elements.h"

namespace stand_in {
namespace {

bool IsTrue(const std::string& argument) { return argument == "true"; }

template <typename T>
using Binary = T (*)(T, T);
template <typename T>
using Comparison = bool (*)(T, T);

template <typename T>
T Divide(T a, T b) {
  if (!std::is_floating_point_v<T> && b == 0) return 0;
  return static_cast<T>(a / b);
}

// The remainder with the sign of the divisor.
template <typename T>
T Remainder(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(fmod(a, b));
  } else {
    if (b == 0) return 0;
    const T found = static_cast<T>(a % b);
    return found != 0 && (found < 0) != (b < 0) ? static_cast<T>(found + b) : found;
  }
}

template <typename T>
Binary<T> BinaryOf(const std::string& name) {
  if (name == "Add") return [](T a, T b) { return static_cast<T>(a + b); };
  if (name == "Sub") return [](T a, T b) { return static_cast<T>(a - b); };
  if (name == "Mul") return [](T a, T b) { return static_cast<T>(a * b); };
  if (name == "Div") return Divide<T>;
  if (name == "Min") return [](T a, T b) { return b < a ? b : a; };
  if (name == "Max") return [](T a, T b) { return a < b ? b : a; };
  if (name == "Pow") return [](T a, T b) { return static_cast<T>(pow(a, b)); };
  if (name == "Mod") return Remainder<T>;
  if (name == "And") return [](T a, T b) { return static_cast<T>(a && b); };
  if (name == "Or") return [](T a, T b) { return static_cast<T>(a || b); };
  return nullptr;
}

template <typename T>
Comparison<T> ComparisonOf(const std::string& name) {
  if (name == "Less") return [](T a, T b) { return a < b; };
  if (name == "LessOrEqual") return [](T a, T b) { return a <= b; };
  if (name == "Greater") return [](T a, T b) { return a > b; };
  if (name == "GreaterOrEqual") return [](T a, T b) { return a >= b; };
  if (name == "Equal") return [](T a, T b) { return a == b; };
  return nullptr;
}

// The indices of a binary operator's inputs, output and count among the parameters.
struct Places {
  int left, right, output, count;
};

// `types`: index of the first type argument; the types are those of the result and of both inputs.
Computation MakeBinary(const Launch& launch, size_t types, Places places, Broadcast left,
                       Broadcast right) {
  const auto& arguments = launch.name.arguments;
  const std::string name = OperatorOf(arguments[types + 3]);
  const auto count = launch.Integer(places.count);
  Computation made;
  Visit(arguments[types + 1], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using C = ComputedType<T>;
    const auto a = launch.Get<const T*>(places.left), b = launch.Get<const T*>(places.right);
    if (const auto compare = ComparisonOf<C>(name)) {
      made = [=, to = launch.Get<bool*>(places.output)] {
        for (int64_t i = 0; i < count; ++i) to[i] = compare(a[left(i)], b[right(i)]);
      };
    } else if (const auto run = BinaryOf<C>(name)) {
      made = [=, to = launch.Get<T*>(places.output)] {
        for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(run(a[left(i)], b[right(i)]));
      };
    }
  });
  return made;
}

Broadcast EachOrScalar(const std::string& is_each) {
  return IsTrue(is_each) ? Broadcast::Each() : Broadcast::Scalar();
}

Computation MakeSimpleBinary(const Launch& launch) {
  const auto& arguments = launch.name.arguments;
  return MakeBinary(launch, 2, {0, 1, 2, 4}, EachOrScalar(arguments[0]),
                    EachOrScalar(arguments[1]));
}

Computation MakeBinaryOfChannels(const Launch& launch) {
  const Broadcast right = Broadcast::Channels(launch.Get<Divisor>(2).value, INT64_MAX);
  return MakeBinary(launch, 0, {0, 1, 3, 5}, Broadcast::Each(), right);
}

Computation MakeBinaryOfRepeatedChannels(const Launch& launch) {
  const Broadcast right =
      Broadcast::Channels(launch.Get<Divisor>(2).value, launch.Get<Divisor>(3).value);
  return MakeBinary(launch, 0, {0, 1, 4, 6}, Broadcast::Each(), right);
}

Computation MakeStridedBinary(const Launch& launch) {
  const auto& arguments = launch.name.arguments;
  const int rank = launch.Get<int>(0);
  const auto sizes = launch.Get<Array<Divisor>>(5);
  const auto side = [&](size_t argument, int strides) {
    return IsTrue(arguments[argument])
               ? Broadcast::Strides(rank, sizes, launch.Get<Array<int64_t>>(strides))
               : Broadcast::Each();
  };
  return MakeBinary(launch, 0, {2, 4, 6, 8}, side(4, 1), side(5, 3));
}

template <typename T>
Computation MakeChoice(const bool* condition, const T* yes, const T* no, T* to, int64_t count,
                       const Broadcast (&places)[3]) {
  return [=, c = places[0], y = places[1], n = places[2]] {
    for (int64_t i = 0; i < count; ++i) to[i] = condition[c(i)] ? yes[y(i)] : no[n(i)];
  };
}

Computation MakeSimpleWhere(const Launch& launch) {
  Broadcast places[3];
  for (size_t i = 0; i < 3; ++i) {
    places[i] = launch.name.arguments[i + 1].back() == '0' ? Broadcast::Each() : Broadcast::Scalar();
  }
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = MakeChoice(launch.Get<const bool*>(0), launch.Get<const T*>(1),
                      launch.Get<const T*>(2), launch.Get<T*>(3), launch.Integer(4), places);
  });
  return made;
}

Computation MakeStridedWhere(const Launch& launch) {
  const int rank = static_cast<int>(launch.Integer(0));
  const auto sizes = launch.Get<Array<Divisor>>(7);
  Broadcast places[3];
  for (int i = 0; i < 3; ++i) {
    const char kind = launch.name.arguments[static_cast<size_t>(i) + 1].back();
    if (kind == '1') places[i] = Broadcast::Scalar();
    if (kind == '2') {
      places[i] = Broadcast::Strides(rank, sizes, launch.Get<Array<int64_t>>(1 + 2 * i));
    }
  }
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = MakeChoice(launch.Get<const bool*>(2), launch.Get<const T*>(4),
                      launch.Get<const T*>(6), launch.Get<T*>(8), launch.Integer(9), places);
  });
  return made;
}

// Missing limits are the type's limits.
Computation MakeClip(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [from = launch.Get<const T*>(0), to = launch.Get<T*>(1),
            least = launch.Get<const T*>(2), most = launch.Get<const T*>(3),
            default_least = launch.Get<T>(4), default_most = launch.Get<T>(5),
            count = launch.Integer(6)] {
      const T low = least ? *least : default_least, high = most ? *most : default_most;
      for (int64_t i = 0; i < count; ++i) {
        to[i] = from[i] < low ? low : from[i] > high ? high : from[i];
      }
    };
  });
  return made;
}

Computation MakeFill(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [to = launch.Get<T*>(0), value = launch.Get<T>(1), count = launch.Integer(2)] {
      for (int64_t i = 0; i < count; ++i) to[i] = value;
    };
  });
  return made;
}

Computation MakeFillFromPointer(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = MakeExpansion(launch.Get<const T*>(1), launch.Get<T*>(0), launch.Integer(2),
                         Broadcast::Scalar());
  });
  return made;
}

Computation MakeExpand(const Launch& launch) {
  const auto places = Broadcast::Strides(launch.Get<int>(0), launch.Get<Array<Divisor>>(4),
                                         launch.Get<Array<int64_t>>(5));
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = MakeExpansion(launch.Get<const T*>(2), launch.Get<T*>(3), launch.Integer(1), places);
  });
  return made;
}

Computation MakeExpandOfMatrix(const Launch& launch) {
  const Array<Divisor> sizes{2, {launch.Get<Divisor>(3), {1, 0, 0}}};
  const Array<int64_t> strides{2, {launch.Get<int>(4), launch.Get<int>(5)}};
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = MakeExpansion(launch.Get<const T*>(1), launch.Get<T*>(2), launch.Integer(0),
                         Broadcast::Strides(2, sizes, strides));
  });
  return made;
}

// The bias of a product; rows, columns or both may share elements. Parameters: bias, output, count,
// columns, strides of rows and columns, factor.
Computation MakeBias(const Launch& launch) {
  const auto& arguments = launch.name.arguments;
  const int64_t num_columns =
      arguments[1] == "int" ? launch.Get<Divisor>(3).value : launch.Get<int64_t>(3);
  Computation made;
  VisitFloat(arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [=, from = launch.Get<const T*>(0), to = launch.Get<T*>(1), count = launch.Integer(2),
            row_stride = launch.Get<int>(4), column_stride = launch.Get<int>(5),
            is_scaled = IsTrue(arguments[2]), factor = launch.Get<T>(6)] {
      for (int64_t i = 0; i < count; ++i) {
        const T value = from[i / num_columns * row_stride + i % num_columns * column_stride];
        to[i] = is_scaled ? static_cast<T>(factor * value) : value;
      }
    };
  });
  return made;
}

// Parameters: start, step, count, output.
Computation MakeRange(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [start = launch.Get<T>(0), step = launch.Get<T>(1), count = launch.Integer(2),
            to = launch.Get<T*>(3)] {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(start + static_cast<T>(i) * step);
    };
  });
  return made;
}

constexpr Kernel kKernels[] = {
    {"onnxruntime::cuda::_BinaryElementWise", MakeStridedBinary},
    {"onnxruntime::cuda::_BinaryElementWiseSimple", MakeSimpleBinary},
    {"onnxruntime::cuda::_BinaryElementWiseRhsPerChannelBatch1", MakeBinaryOfChannels},
    {"onnxruntime::cuda::_BinaryElementWiseRhsPerChannelBatchN", MakeBinaryOfRepeatedChannels},
    {"onnxruntime::cuda::_TenaryElementWise", MakeStridedWhere},
    {"onnxruntime::cuda::_TenaryElementWiseSimple", MakeSimpleWhere},
    {"onnxruntime::cuda::_Clip", MakeClip},
    {"onnxruntime::cuda::_Fill", MakeFill},
    {"onnxruntime::cuda::_FillFromDataPtrKernel", MakeFillFromPointer},
    {"onnxruntime::cuda::ExpandKernel", MakeExpand},
    {"onnxruntime::cuda::ExpandKernel2D", MakeExpandOfMatrix},
    {"onnxruntime::cuda::BroadcastBiasKernel", MakeBias},
    {"onnxruntime::cuda::RangeKernel", MakeRange},
};

}  // namespace

const Kernels kElementKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
