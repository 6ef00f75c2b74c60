// Products with matrices of 4 or 8 bits, and lookups in tables of 4 or 8 bits.
// Source: onnxruntime/contrib_ops/cuda/quantization/{matmul_4bits_m1_impl.cuh,
// matmul_4bits_batched_impl.cuh, matmul_8bits_m1_impl.cuh, matmul_8bits_batched_impl.cuh,
// dequantize_blockwise_4bits.cu, dequantize_blockwise_8bits.cu, matmul_4bits.cu,
// gather_block_quantized.cu}.

#include <string>
#include <type_traits>
#include <vector>

#include <stdint.h>
#include <stdlib.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {
namespace {

// The number at `index` among packed numbers of 4 or 8 bits, low bits first.
int NumberAt(const uint8_t* packed, int64_t index, int64_t bits) {
  const int64_t in_byte = 8 / bits;
  return packed[index / in_byte] >> (index % in_byte * bits) & ((1 << bits) - 1);
}

enum class Rounding { kNone, kOnce, kTwice };

// A matrix [outputs, blocks * block_size]. Each block has a scale and a zero point.
template <typename T, int kBits>
struct Matrix {
  const uint8_t* numbers;
  const T* scales;       // [outputs, blocks]
  const uint8_t* zeros;  // [outputs, blocks], an output begins at a byte; null: all are the middle
  int64_t num_blocks, block_size;

  // (number - zero) * scale. kOnce: rounded to T; kTwice: zero * scale is rounded, too.
  float At(int64_t output, int64_t input, Rounding rounding) const {
    const int64_t block = input / block_size;
    const float scale = scales[output * num_blocks + block];
    const int64_t row_bytes = (num_blocks * kBits + 7) / 8;
    const int zero = zeros == nullptr ? 1 << (kBits - 1)
                                      : NumberAt(zeros + output * row_bytes, block, kBits);
    const int64_t row_size = num_blocks * block_size;
    const int number = NumberAt(numbers, output * row_size + input, kBits);
    if (rounding == Rounding::kTwice) {
      const float offset = T(-scale * static_cast<float>(zero));
      return T(static_cast<float>(number) * scale + offset);
    }
    const float weight = static_cast<float>(number - zero) * scale;
    return rounding == Rounding::kOnce ? static_cast<float>(T(weight)) : weight;
  }
};

// The 8-bit kernel for one row rounds fp16 weights to fp16; that for more rows, and with other
// types, does not round.
template <typename T, int kBits, bool kIsOneRow>
constexpr Rounding RoundingOf() {
  if (kBits == 4) return Rounding::kTwice;
  return kIsOneRow && std::is_same_v<T, Half> ? Rounding::kOnce : Rounding::kNone;
}

// [rows, outputs] = [rows, inputs] times a matrix. Sums are fp32, although the kernels of 4 bits
// add in T.
// Template arguments: T, block size, ... Parameters: result, inputs, numbers, scales, zero points,
// rows (not with kIsOneRow), outputs, inputs, blocks per output.
template <int kBits, bool kIsOneRow>
Computation MakeProduct(const Launch& launch) {
  const bool has_rows = launch.name.parameters.size() == 9;
  const int64_t num_rows = has_rows ? launch.Integer(5) : 1;
  const int sizes = has_rows ? 6 : 5;  // index of the sizes
  const int64_t num_outputs = launch.Integer(sizes), num_inputs = launch.Integer(sizes + 1);
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Matrix<T, kBits> matrix = {
        launch.Get<const uint8_t*>(2), launch.Get<const T*>(3), launch.Get<const uint8_t*>(4),
        launch.Integer(sizes + 2), atoi(launch.name.arguments[1].c_str())};
    made = [=, results = launch.Get<T*>(0), inputs = launch.Get<const T*>(1)] {
      std::vector<float> weights(static_cast<size_t>(num_inputs));
      for (int64_t output = 0; output < num_outputs; ++output) {
        for (int64_t i = 0; i < num_inputs; ++i) {
          weights[static_cast<size_t>(i)] =
              matrix.At(output, i, RoundingOf<T, kBits, kIsOneRow>());
        }
        for (int64_t row = 0; row < num_rows; ++row) {
          float sum = 0;
          for (int64_t i = 0; i < num_inputs; ++i) {
            sum += static_cast<float>(inputs[row * num_inputs + i]) *
                   weights[static_cast<size_t>(i)];
          }
          results[row * num_outputs + output] = T(sum);
        }
      }
    };
  });
  return made;
}

// Dequantizes the whole matrix, for a product by cuBLAS: [outputs, blocks * block size]. Template
// arguments: T, type of zero points. Parameters: result, numbers, scales, zero points, block size,
// blocks per output (4 bits only), blocks per thread block, blocks.
template <int kBits>
Computation MakeDequantize(const Launch& launch) {
  Computation made;
  if (launch.name.arguments[1] != "unsigned char") return made;
  const int64_t block_size = launch.Integer(4);
  const int64_t all_blocks = launch.Integer(kBits == 4 ? 7 : 6);
  const int64_t num_blocks = kBits == 4 ? launch.Integer(5) : 1;  // 8 bits: no padding of rows
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const Matrix<T, kBits> matrix = {launch.Get<const uint8_t*>(1), launch.Get<const T*>(2),
                                     launch.Get<const uint8_t*>(3), num_blocks, block_size};
    made = [=, to = launch.Get<T*>(0)] {
      const int64_t row_size = num_blocks * block_size;
      for (int64_t i = 0; i < all_blocks * block_size; ++i) {
        to[i] = T(matrix.At(i / row_size, i % row_size, Rounding::kTwice));
      }
    };
  });
  return made;
}

// Template argument: T. Parameters: result [..., size], bias [size], size, count of results.
Computation MakeAddBias(const Launch& launch) {
  const int64_t size = launch.Integer(2), count = launch.Integer(3);
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [=, to = launch.Get<T*>(0), bias = launch.Get<const T*>(1)] {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = T(static_cast<float>(to[i]) + static_cast<float>(bias[i % size]));
      }
    };
  });
  return made;
}

// Gathers slices of a table [before, entries, after] of unsigned numbers: [before, ids, after].
// Blocks are consecutive across rows. Template arguments: type of numbers, T, type of ids.
// Parameters: numbers, ids, scales, zero points, result, after, entries, number of ids, bits, block
// size, axis, number of results, sign.
Computation MakeGather(const Launch& launch) {
  Computation made;
  if (launch.name.arguments[0] != "unsigned char") return made;
  const int64_t after = launch.Integer(5), num_entries = launch.Integer(6);
  const int64_t num_ids = launch.Integer(7), bits = launch.Integer(8);
  const int64_t block_size = launch.Integer(9), count = launch.Integer(11);
  const auto numbers = launch.Get<const uint8_t*>(0), zeros = launch.Get<const uint8_t*>(3);
  const std::string& type = launch.name.arguments[1];
  VisitFloat(type == "onnxruntime::BFloat16" ? "__nv_bfloat16" : type, [&](auto tag) {
    VisitInteger(launch.name.arguments[2], [&](auto id_tag) {
      using T = typename decltype(tag)::Type;
      using Id = typename decltype(id_tag)::Type;
      made = [=, ids = launch.Get<const Id*>(1), scales = launch.Get<const T*>(2),
              to = launch.Get<T*>(4)] {
        for (int64_t i = 0; i < count; ++i) {
          int64_t entry = static_cast<int64_t>(ids[i / after % num_ids]);
          if (entry < 0) entry += num_entries;
          const int64_t from = (i / after / num_ids * num_entries + entry) * after + i % after;
          const int64_t block = from / block_size;
          const int zero = zeros == nullptr ? 1 << (bits - 1) : NumberAt(zeros, block, bits);
          const int number = NumberAt(numbers, from, bits) - zero;
          to[i] = T(static_cast<float>(number) * static_cast<float>(scales[block]));
        }
      };
    });
  });
  return made;
}

#define NAMED(name) "onnxruntime::contrib::cuda::" name
constexpr Kernel kKernels[] = {
    {NAMED("MatMulFloat4BitsKernelM1"), MakeProduct<4, true>},
    {NAMED("MatMulFloat4BatchedKernel"), MakeProduct<4, false>},
    {NAMED("MatMulFloatInt4KernelSmallM"), MakeProduct<4, false>},
    {NAMED("MatMulFloat8bKernelM1"), MakeProduct<8, true>},
    {NAMED("MatMulFloat8bKernelBatched"), MakeProduct<8, false>},
    {NAMED("Dequantize4BitsKernel"), MakeDequantize<4>},
    {NAMED("Dequantize8BitsKernel"), MakeDequantize<8>},
    {NAMED("MatMulNBitsBiasAddKernel"), MakeAddBias},
    {NAMED("GatherBlockQuantizedKernel"), MakeGather},
};

}  // namespace

const Kernels kQuantizedKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
