// Concatenation, padding, and reversal of sequences.
// Source: onnxruntime/core/providers/cuda/tensor/{concat,pad}_impl.cu, rnn/rnn_impl.cu.

#include <algorithm>

#include <stdlib.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {
namespace {

constexpr int kMostInputs = 32;

// `ends`: the ends of the inputs along the axis. `whole`, `inner`: elements of the output per
// coordinate before the axis, and per coordinate of the axis.
Computation MakeConcat(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [whole = launch.Get<Divisor>(0).value, inner = launch.Get<Divisor>(1).value,
            ends = launch.Get<Array<int64_t, kMostInputs>>(2), to = launch.Get<T*>(3),
            inputs = launch.Get<Array<const T*, kMostInputs>>(4), count = launch.Integer(5)] {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t outer = i / whole, coordinate = i % whole / inner;
        int input = 0;
        while (coordinate >= ends.values[input]) ++input;
        const int64_t begin = input == 0 ? 0 : ends.values[input - 1];
        const int64_t size = ends.values[input] - begin;
        const int64_t row = outer * size + coordinate - begin;
        to[i] = inputs.values[input][row * inner + i % inner];
      }
    };
  });
  return made;
}

// All inputs have `size` elements along the axis. `inputs`: by value, or in device memory.
template <typename T, typename Inputs>
Computation MakeConcatOf(const Launch& launch, Inputs inputs) {
  return [inputs, whole = launch.Get<Divisor>(0).value, inner = launch.Get<Divisor>(1).value,
          size = launch.Get<Divisor>(2).value, to = launch.Get<T*>(3), count = launch.Integer(5)] {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t coordinate = i % whole / inner;
      const int64_t row = i / whole * size + coordinate % size;
      to[i] = inputs(coordinate / size)[row * inner + i % inner];
    }
  };
}

Computation MakeConcatOfSameSizes(const Launch& launch) {
  const bool is_value = launch.name.arguments[1].find("TArray") != std::string::npos;
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (is_value) {
      const auto inputs = launch.Get<Array<const T*, kMostInputs>>(4);
      made = MakeConcatOf<T>(launch, [inputs](int64_t i) { return inputs.values[i]; });
    } else {
      const auto* inputs = launch.Get<const T* const*>(4);
      made = MakeConcatOf<T>(launch, [inputs](int64_t i) { return inputs[i]; });
    }
  });
  return made;
}

// Each input has `num_rows` rows of its own size; `places` gives their starts in rows of the
// output.
Computation MakeConcatOfRows(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [inputs = launch.Get<Array<const T*, kMostInputs>>(0),
            places = launch.Get<Array<int32_t, kMostInputs>>(2),
            sizes = launch.Get<Array<Divisor, kMostInputs>>(3), num_rows = launch.Get<int>(4),
            row_size = launch.Get<int>(5), to = launch.Get<T*>(6)] {
      for (int i = 0; i < inputs.size; ++i) {
        const int64_t size = sizes.values[i].value;
        for (int64_t row = 0; row < num_rows; ++row) {
          std::copy_n(inputs.values[i] + row * size, size, to + row * row_size + places.values[i]);
        }
      }
    };
  });
  return made;
}

// The mode of the operator Pad.
enum Padding { kConstant, kReflect, kEdge, kWrap };

// The coordinate whose element is at `coordinate`, both relative to the first element of the input.
// Returns -1 for the constant.
int64_t SourceOf(int padding, int64_t coordinate, int64_t size) {
  if (coordinate >= 0 && coordinate < size) return coordinate;
  const bool is_before = coordinate < 0;
  switch (padding) {
    case kReflect: return is_before ? -coordinate : 2 * size - 2 - coordinate;
    case kEdge: return is_before ? 0 : size - 1;
    case kWrap: return (coordinate % size + size) % size;
    default: return -1;
  }
}

// kWrap repeats the part of the input from `offsets` on, of `extents` elements, which remains after
// negative padding.
Computation MakePad(const Launch& launch) {
  const int padding = atoi(launch.name.arguments[1].c_str());
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [padding, rank = launch.Integer(0), sizes = launch.Get<Array<int64_t>>(1),
            strides = launch.Get<Array<int64_t>>(2), begins = launch.Get<Array<int64_t>>(3),
            extents = launch.Get<Array<int64_t>>(4), offsets = launch.Get<Array<int64_t>>(5),
            constant = launch.Get<T>(6), from = launch.Get<const T*>(7),
            counts = launch.Get<Array<Divisor>>(8), to = launch.Get<T*>(9),
            count = launch.Integer(10)] {
      for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, place = 0;
        bool is_inside = true;
        for (int64_t d = 0; d < rank; ++d) {
          const int64_t coordinate = rest / counts.values[d].value - begins.values[d];
          rest %= counts.values[d].value;
          const int64_t first = padding == kWrap ? offsets.values[d] : 0;
          const int64_t size = padding == kWrap ? extents.values[d] : sizes.values[d];
          const int64_t source = SourceOf(padding, coordinate - first, size);
          is_inside = is_inside && source >= 0;
          place += (first + source) * strides.values[d];
        }
        to[i] = is_inside ? from[place] : constant;
      }
    };
  });
  return made;
}

// Pads the last two dimensions only.
Computation MakePadOfMatrices(const Launch& launch) {
  const int padding = atoi(launch.name.arguments[1].c_str());
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [padding, height = launch.Get<int64_t>(2), padded_height = launch.Get<int64_t>(3),
            width = launch.Get<int64_t>(4), padded_width = launch.Get<int64_t>(5),
            first_row = launch.Get<int64_t>(6), first_column = launch.Get<int64_t>(7),
            constant = launch.Get<T>(8), from = launch.Get<const T*>(9), to = launch.Get<T*>(10),
            count = launch.Integer(11)] {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = i / padded_width % padded_height, column = i % padded_width;
        const int64_t matrix = i / padded_width / padded_height;
        const int64_t y = SourceOf(padding, row - first_row, height);
        const int64_t x = SourceOf(padding, column - first_column, width);
        to[i] = y < 0 || x < 0 ? constant : from[(matrix * height + y) * width + x];
      }
    };
  });
  return made;
}

// Reverses the steps of each sequence of [steps, batch, size]; writes zeros after its end.
Computation MakeReverse(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [lengths = launch.Get<const int*>(1), step_size = launch.Get<int>(2),
            size = launch.Get<Divisor>(4).value, from = launch.Get<const T*>(5),
            to = launch.Get<T*>(6), count = launch.Integer(7)] {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t step = i / step_size, place = i % step_size;
        const int64_t source = lengths[place / size] - 1 - step;
        to[i] = source < 0 ? T(0) : from[source * step_size + place];
      }
    };
  });
  return made;
}

constexpr Kernel kKernels[] = {
    {"onnxruntime::cuda::_ConcatKernelInputMajor", MakeConcatOfRows},
    {"onnxruntime::cuda::_ConcatKernelOutputMajor", MakeConcat},
    {"onnxruntime::cuda::_ConcatKernelSameConcatDim", MakeConcatOfSameSizes},
    {"onnxruntime::cuda::_PadKernel", MakePad},
    {"onnxruntime::cuda::_PadNCHWInputWithPaddingAlongHAndWKernel", MakePadOfMatrices},
    {"onnxruntime::cuda::_ReverseBySequenceKernel", MakeReverse},
};

}  // namespace

const Kernels kJoinKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
