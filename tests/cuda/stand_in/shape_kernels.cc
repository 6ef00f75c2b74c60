// Operators that move elements without computing.
// Source: onnxruntime/core/providers/cuda/tensor/{gather,gather_elements,gather_nd,slice,split,
// transpose}_impl.cu, fpgeneric.cu.

#include "broadcast.h"
#include "elements.h"

namespace stand_in {
namespace {

constexpr size_t kVectorBytes = 16;

int64_t IndexAt(const void* indices, size_t size, int64_t place) {
  return size == sizeof(int32_t) ? static_cast<const int32_t*>(indices)[place]
                                 : static_cast<const int64_t*>(indices)[place];
}

// Indices outside the axis select zeros.
Computation MakeGather(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [input_block = launch.Get<int64_t>(0), axis = launch.Get<int64_t>(1),
            output_block = launch.Get<Divisor>(2).value, block = launch.Get<Divisor>(3).value,
            indices = launch.Get<const void*>(4), index_size = launch.Get<size_t>(5),
            from = launch.Get<const T*>(6), to = launch.Get<T*>(7), count = launch.Integer(8)] {
      for (int64_t i = 0; i < count; ++i) {
        int64_t index = IndexAt(indices, index_size, i % output_block / block);
        if (index < 0) index += axis;
        const bool is_inside = index >= 0 && index < axis;
        const int64_t place = i / output_block * input_block + index * block + i % block;
        to[i] = is_inside ? from[place] : T(0);
      }
    };
  });
  return made;
}

// For GatherElements and ScatterElements: the offset of the row that an index selects from, and of
// the index.
struct Offsets {
  int64_t row, index;
};

struct OffsetsOfMatrix {
  Divisor row_size;
  int32_t input_row_size;
  Array<int32_t> strides;
};

struct OffsetsOfTensor {
  int32_t rank;
  Array<Divisor> sizes;
  Array<int32_t> input_strides, index_strides;
};

using FindOffsets = std::function<Offsets(int64_t)>;

FindOffsets OffsetsOf(const Launch& launch) {
  const std::string& type = launch.name.arguments[3];
  const Name name = NameOf(type);
  if (name.base.find("OffsetCalculatorFor2D") != std::string::npos) {
    const bool is_outer = name.arguments[0] == "true", is_strided = name.arguments[1] == "true";
    return [=, offsets = launch.Get<OffsetsOfMatrix>(5)](int64_t place) -> Offsets {
      const int64_t row = place / offsets.row_size.value, column = place % offsets.row_size.value;
      const int64_t strided = row * offsets.strides.values[0] + column * offsets.strides.values[1];
      return {is_outer ? column : row * offsets.input_row_size, is_strided ? strided : place};
    };
  }
  const bool is_strided = name.arguments[0] == "true";
  return [=, offsets = launch.Get<OffsetsOfTensor>(5)](int64_t place) -> Offsets {
    Offsets found = {0, is_strided ? 0 : place};
    for (int i = 0; i < offsets.rank; ++i) {
      const int64_t coordinate = place / offsets.sizes.values[i].value;
      place %= offsets.sizes.values[i].value;
      found.row += coordinate * offsets.input_strides.values[i];
      if (is_strided) found.index += coordinate * offsets.index_strides.values[i];
    }
    return found;
  };
}

// Ignores indices outside the axis. Scattered elements replace those in the output.
Computation MakeGatherOrScatterElements(const Launch& launch) {
  const auto& arguments = launch.name.arguments;
  const bool is_gather = arguments[2] == "true";
  if (arguments[4].find("FuncAssignment") == std::string::npos) return nullptr;
  Computation made;
  Visit(arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [=, from = launch.Get<const T*>(0), indices = launch.Get<const void*>(1),
            to = launch.Get<T*>(2), axis = launch.Get<int64_t>(3),
            stride = launch.Get<int64_t>(4), offsets = OffsetsOf(launch),
            index_size = arguments[1] == "int" ? sizeof(int32_t) : sizeof(int64_t),
            count = launch.Integer(7)] {
      for (int64_t i = 0; i < count; ++i) {
        const Offsets found = offsets(i);
        int64_t index = IndexAt(indices, index_size, found.index);
        if (index < 0) index += axis;
        if (index < 0 || index >= axis) continue;
        const int64_t place = found.row + index * stride;
        if (is_gather) {
          to[i] = from[place];
        } else {
          to[place] = from[i];
        }
      }
    };
  });
  return made;
}

// The offsets of the slices that tuples of `num_dimensions` indices select. Dimensions before
// `first_dimension` are batch dimensions.
template <typename T>
Computation MakeOffsetsOfSlices(const Launch& launch) {
  return [first_dimension = launch.Get<int64_t>(0), sizes = launch.Get<Array<int64_t>>(1),
          num_slices = launch.Integer(2), num_batch_slices = launch.Integer(3),
          batch_stride = launch.Integer(4), num_dimensions = launch.Integer(5),
          strides = launch.Get<Array<int64_t>>(6), indices = launch.Get<const T*>(7),
          to = launch.Get<int64_t*>(8)] {
    for (int64_t slice = 0; slice < num_slices; ++slice) {
      to[slice] = slice / num_batch_slices * batch_stride;
      for (int64_t i = 0; i < num_dimensions; ++i) {
        int64_t index = indices[slice * num_dimensions + i];
        if (index < 0) index += sizes.values[first_dimension + i];
        to[slice] += index * strides.values[i];
      }
    }
  };
}

Computation MakeSliceOffsets(const Launch& launch) {
  return launch.name.arguments[0] == "int" ? MakeOffsetsOfSlices<int32_t>(launch)
                                           : MakeOffsetsOfSlices<int64_t>(launch);
}

Computation MakeGatherOfSlices(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [num_slices = launch.Integer(0), from = launch.Get<const T*>(1), to = launch.Get<T*>(2),
            size = launch.Integer(3), offsets = launch.Get<const int64_t*>(4)] {
      for (int64_t i = 0; i < num_slices * size; ++i) to[i] = from[offsets[i / size] + i % size];
    };
  });
  return made;
}

Computation MakeSlice(const Launch& launch) {
  if (launch.name.arguments[0] != "false") return nullptr;  // whether it is for a gradient
  const int rank = atoi(launch.name.arguments[1].c_str());
  Computation made;
  Visit(launch.name.arguments[2], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [rank, starts = launch.Get<Array<int64_t>>(0), steps = launch.Get<Array<int64_t>>(1),
            strides = launch.Get<Array<int64_t>>(2), sizes = launch.Get<Array<Divisor>>(3),
            from = launch.Get<const T*>(4), to = launch.Get<T*>(5), count = launch.Integer(6)] {
      for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, place = 0;
        for (int d = 0; d < rank; ++d) {
          const bool is_last = d == rank - 1;
          const int64_t coordinate = is_last ? rest : rest / sizes.values[d].value;
          if (!is_last) rest %= sizes.values[d].value;
          const int64_t stride = is_last ? 1 : strides.values[d];
          place += (starts.values[d] + coordinate * steps.values[d]) * stride;
        }
        to[i] = from[place];
      }
    };
  });
  return made;
}

// Parts of rows of `row_size` bytes; `count` vectors of 16, 8, 4, 2 or 1 bytes in total.
Computation MakeSplit(const Launch& launch) {
  const std::string& type = launch.name.arguments[0];
  size_t vector = kVectorBytes;
  if (type != "int4" && !VisitInteger(type, [&](auto tag) {
        vector = sizeof(typename decltype(tag)::Type);
      })) {
    return nullptr;
  }
  return [vector, sizes = launch.Get<Array<int64_t, 4>>(0), from = launch.Get<const char*>(1),
          outputs = launch.Get<Array<char*, 4>>(2), row_size = launch.Get<int64_t>(3),
          count = launch.Integer(4)] {
    const int64_t num_rows = count * static_cast<int64_t>(vector) / row_size;
    for (int64_t row = 0; row < num_rows; ++row) {
      const char* part = from + row * row_size;
      for (int i = 0; i < sizes.size; ++i) {
        const int64_t size = sizes.values[i];
        memcpy(outputs.values[i] + row * size, part, static_cast<size_t>(size));
        part += size;
      }
    }
  };
}

Computation MakeTranspose(const Launch& launch) {
  const auto places = Broadcast::Strides(launch.Get<int>(0), launch.Get<Array<Divisor>>(3),
                                         launch.Get<Array<int64_t>>(1));
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = MakeExpansion(launch.Get<const T*>(2), launch.Get<T*>(4), launch.Integer(5), places);
  });
  return made;
}

// Strides are in elements, except the last, which is in vectors. A thread block has a part of the
// third dimension; its threads along x are vectors of the last dimension.
Computation MakeTransposeOfVectors(const Launch& launch) {
  const int64_t element = atoi(launch.name.arguments[0].c_str());
  return [element, grid = launch.grid, block = launch.block,
          from_strides = launch.Get<Array<int64_t>>(0), from = launch.Get<const char*>(1),
          to_strides = launch.Get<Array<int64_t>>(2), to = launch.Get<char*>(3),
          size = launch.Get<int64_t>(4)] {
    const auto place = [&](const Array<int64_t>& strides, const int64_t (&at)[4]) {
      int64_t bytes = at[3] * strides.values[3] * static_cast<int64_t>(kVectorBytes);
      for (int i = 0; i < 3; ++i) bytes += at[i] * strides.values[i] * element;
      return bytes;
    };
    for (unsigned i = 0; i < grid.z; ++i) {
      for (unsigned j = 0; j < grid.y; ++j) {
        for (int64_t k = 0; k < size; ++k) {
          for (unsigned l = 0; l < block.x; ++l) {
            const int64_t at[4] = {i, j, k, l};
            memcpy(to + place(to_strides, at), from + place(from_strides, at), kVectorBytes);
          }
        }
      }
    }
  };
}

// Transposes one matrix for each z of the grid; they are `stride` elements apart.
Computation MakeTransposeOfMatrices(const Launch& launch) {
  Computation made;
  Visit(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [count = launch.grid.z, num_rows = launch.Get<int64_t>(0),
            num_columns = launch.Get<int64_t>(1), stride = launch.Get<int64_t>(2),
            from = launch.Get<const T*>(3), to = launch.Get<T*>(4)] {
      for (int64_t matrix = 0; matrix < count; ++matrix) {
        for (int64_t i = 0; i < num_rows; ++i) {
          for (int64_t j = 0; j < num_columns; ++j) {
            to[matrix * stride + j * num_rows + i] = from[matrix * stride + i * num_columns + j];
          }
        }
      }
    };
  });
  return made;
}

// Transposes a matrix of `num_columns` rows of `num_rows` elements.
Computation MakeTransposeOfMatrix(const Launch& launch) {
  return [to = launch.Get<uint16_t*>(0), from = launch.Get<const uint16_t*>(1),
          num_rows = launch.Get<int>(2), num_columns = launch.Get<int>(3)] {
    for (int64_t i = 0; i < num_rows; ++i) {
      for (int64_t j = 0; j < num_columns; ++j) to[i * num_columns + j] = from[j * num_rows + i];
    }
  };
}

constexpr Kernel kKernels[] = {
    {"onnxruntime::cuda::_GatherKernel", MakeGather},
    {"onnxruntime::cuda::_GatherScatterElementsKernel", MakeGatherOrScatterElements},
    {"onnxruntime::cuda::_ComputeSliceOffsetsKernel", MakeSliceOffsets},
    {"onnxruntime::cuda::_GatherNDKernel", MakeGatherOfSlices},
    {"onnxruntime::cuda::_SliceKernel", MakeSlice},
    {"onnxruntime::cuda::_SplitSmallInnerKernel", MakeSplit},
    {"onnxruntime::cuda::Transpose4DKernelParallelizeMultipleElementsPerThreadInInnermostDim",
     MakeTransposeOfVectors},
    {"onnxruntime::cuda::Transpose3DKernel", MakeTransposeOfMatrices},
    {"onnxruntime::cuda::TransposeKernel", MakeTranspose},
    {"transposeNoOverlap", MakeTransposeOfMatrix},
};

}  // namespace

const Kernels kShapeKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
