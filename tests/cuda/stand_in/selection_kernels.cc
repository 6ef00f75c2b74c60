// Sums, cumulative sums and top-k.
// Source: onnxruntime/core/providers/cuda/math/{topk_impl.cuh,cumsum_impl.cu},
// reduction/reduction_functions.cu.

#include <algorithm>

#include <math.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {
namespace {

constexpr int kRadixThreads = 256;

bool IsFirst(int64_t a, int64_t b) { return a < b; }

template <typename T>
struct Selection {
  const T* from;
  T* values;
  int64_t* indices;
  Array<int64_t> elements;  // in all dimensions from each one on
  size_t rank;
  int axis;
  int64_t count;
  bool is_largest, is_sorted;
  int64_t axis_size;
};

// The top elements of each row. `is_before` orders the indices of equal elements.
template <typename T>
void Select(const Selection<T>& s, int64_t num_rows, bool (*is_before)(int64_t, int64_t)) {
  const bool is_last = s.axis == static_cast<int>(s.rank) - 1;
  const int64_t inner = is_last ? 1 : s.elements.values[s.axis + 1];
  std::vector<int64_t> order(static_cast<size_t>(s.axis_size));
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t begin = row / inner * s.elements.values[s.axis] + row % inner;
    const int64_t target = row / inner * inner * s.count + row % inner;
    const auto value = [&](int64_t i) { return s.from[begin + i * inner]; };
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    const auto selected = order.begin() + s.count;
    std::partial_sort(order.begin(), selected, order.end(), [&](int64_t a, int64_t b) {
      if (value(a) != value(b)) return s.is_largest == (value(a) > value(b));
      return is_before(a, b);
    });
    if (!s.is_sorted) std::sort(order.begin(), selected, IsFirst);
    for (int64_t i = 0; i < s.count; ++i) {
      s.values[target + i * inner] = value(order[static_cast<size_t>(i)]);
      s.indices[target + i * inner] = order[static_cast<size_t>(i)];
    }
  }
}

// The order of the radix kernel, whose threads each select among every kRadixThreads-th element.
bool IsFirstOfThreads(int64_t a, int64_t b) {
  if (a % kRadixThreads != b % kRadixThreads) return a % kRadixThreads < b % kRadixThreads;
  return a < b;
}

template <typename T>
Selection<T> SelectionOf(const Launch& launch, int first_flag) {
  return {launch.Get<const T*>(0),
          launch.Get<T*>(1),
          launch.Get<int64_t*>(2),
          launch.Get<Array<int64_t>>(3),
          launch.Get<size_t>(4),
          launch.Get<int>(5),
          launch.Get<int64_t>(6),
          launch.Get<int64_t>(first_flag) == 1,
          launch.Get<int64_t>(first_flag + 1) == 1,
          launch.Get<int64_t>(first_flag + 2)};
}

// `first_flag`: index of the parameter from which on the kernels' parameters are the same.
Computation MakeTopK(const Launch& launch, int first_flag, bool (*is_before)(int64_t, int64_t)) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [=, selection = SelectionOf<T>(launch, first_flag), num_rows = launch.grid.x] {
      Select(selection, num_rows, is_before);
    };
  });
  return made;
}

Computation MakeBitonicTopK(const Launch& launch) { return MakeTopK(launch, 8, IsFirst); }
Computation MakeRadixTopK(const Launch& launch) { return MakeTopK(launch, 7, IsFirstOfThreads); }

// Cumulative sums along an axis of `size` elements, `stride` apart.
template <typename T>
Computation MakeRunningSums(const T* from, T* to, int64_t count, int64_t size, int64_t stride,
                            bool is_exclusive, bool is_reverse) {
  return [=] {
    for (int64_t row = 0; row < count / size; ++row) {
      const int64_t begin = row / stride * stride * size + row % stride;
      ComputedType<T> sum = 0;
      for (int64_t i = 0; i < size; ++i) {
        const int64_t place = begin + (is_reverse ? size - 1 - i : i) * stride;
        const ComputedType<T> before = sum;
        sum += from[place];
        to[place] = static_cast<T>(is_exclusive ? before : sum);
      }
    }
  };
}

Computation MakeCumSum(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = MakeRunningSums(launch.Get<const T*>(0), launch.Get<T*>(3), launch.Integer(4),
                           launch.Get<Divisor>(1).value, launch.Get<Divisor>(2).value,
                           launch.Get<bool>(5), launch.Get<bool>(6));
  });
  return made;
}

// A thread block for each row.
Computation MakeCumSumOfIntegers(const Launch& launch) {
  const int64_t size = launch.Get<int>(2), stride = launch.Get<int>(3);
  return MakeRunningSums(launch.Get<const int64_t*>(0), launch.Get<int64_t*>(1),
                         launch.grid.x * size, size, stride, launch.Get<bool>(4),
                         launch.Get<bool>(5));
}

// Sizes and strides of the kept dimensions and of the summed dimensions.
struct SumSizes {
  int num_kept, num_summed;
  int64_t kept_sizes[16], kept_strides[16], summed_sizes[16], summed_strides[16];
  int64_t kept_count, summed_count;
};

int64_t PlaceOf(int64_t index, int rank, const int64_t* sizes, const int64_t* strides) {
  int64_t place = 0;
  for (int i = rank - 1; i >= 0; --i) {
    place += index % sizes[i] * strides[i];
    index /= sizes[i];
  }
  return place;
}

Computation MakeSum(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [from = launch.Get<const T*>(0), to = launch.Get<T*>(1),
            s = launch.Get<SumSizes>(2)] {
      for (int64_t i = 0; i < s.kept_count; ++i) {
        const T* first = from + PlaceOf(i, s.num_kept, s.kept_sizes, s.kept_strides);
        ComputedType<T> sum = 0;
        for (int64_t j = 0; j < s.summed_count; ++j) {
          sum += first[PlaceOf(j, s.num_summed, s.summed_sizes, s.summed_strides)];
        }
        to[i] = static_cast<T>(sum);
      }
    };
  });
  return made;
}

// Sums of rows. Template arguments: types of input, output and sum; the operation on elements, and
// that on sums; whether sums are divided by the number of columns.
Computation MakeSumOfRows(const Launch& launch) {
  const auto& arguments = launch.name.arguments;
  const auto has = [&](size_t argument, const char* name) {
    return arguments[argument].find(name) != std::string::npos;
  };
  Computation made;
  Visit(arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [num_rows = launch.Get<int>(0), num_columns = launch.Get<int>(1),
            from = launch.Get<const T*>(2), to = launch.Get<T*>(3), are_squares = has(3, "Square"),
            are_absolute = has(3, "Abs"), is_root = has(4, "Sqrt"),
            is_mean = arguments[5] == "true"] {
      for (int64_t row = 0; row < num_rows; ++row) {
        ComputedType<T> sum = 0;
        for (int64_t i = 0; i < num_columns; ++i) {
          const ComputedType<T> x = from[row * num_columns + i];
          sum += are_squares ? x * x : are_absolute && x < 0 ? -x : x;
        }
        if (is_root) sum = static_cast<ComputedType<T>>(sqrt(sum));
        to[row] = static_cast<T>(is_mean ? sum / static_cast<ComputedType<T>>(num_columns) : sum);
      }
    };
  });
  return made;
}

// Sums of columns. Parameters: input, output, numbers of rows and columns.
Computation MakeSumOfColumns(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [from = launch.Get<const T*>(0), to = launch.Get<T*>(1), num_rows = launch.Get<int>(2),
            num_columns = launch.Get<int>(3)] {
      for (int64_t column = 0; column < num_columns; ++column) {
        ComputedType<T> sum = 0;
        for (int64_t row = 0; row < num_rows; ++row) sum += from[row * num_columns + column];
        to[column] = static_cast<T>(sum);
      }
    };
  });
  return made;
}

constexpr Kernel kKernels[] = {
    {"onnxruntime::cuda::BitonicTopK", MakeBitonicTopK},
    {"onnxruntime::cuda::RadixTopK", MakeRadixTopK},
    {"onnxruntime::cuda::_CumSumKernel", MakeCumSum},
    {"onnxruntime::cuda::_CumSumInt64BlockKernel", MakeCumSumOfIntegers},
    {"onnxruntime::cuda::detail::reduce_sum_nd_kernel", MakeSum},
    {"onnxruntime::cuda::detail::reduce_matrix_columns_kernel", MakeSumOfRows},
    {"onnxruntime::cuda::detail::reduce_matrix_rows_kernel", MakeSumOfColumns},
};

}  // namespace

const Kernels kSelectionKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
