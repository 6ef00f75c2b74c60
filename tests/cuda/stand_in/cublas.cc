// Stands in for cuBLAS in tests; logs products as kernels. Source: cuBLAS 13.0, "cublasGemmEx",
// "cublasGemmStridedBatchedEx".

#include <vector>

#include <stdint.h>

#include "elements.h"
#include "library.h"

using namespace stand_in;

namespace {

// From cudaDataType_t, cublasComputeType_t and cublasOperation_t.
enum DataType { kFloat = 0, kDouble = 1, kHalf = 2, kBFloat = 14 };
constexpr int kComputesInHalf = 64, kComputesInHalfPedantic = 65;
constexpr int kNotTransposed = 0;

// A column-major matrix.
struct Matrix {
  void* elements;
  int type;
  int64_t stride, batch_stride;  // between columns, between matrices
  bool are_pointers = false;     // `elements` is an array of pointers to matrices

  template <typename T>
  T* At(int64_t number) const {
    if (are_pointers) return static_cast<T* const*>(elements)[number];
    return static_cast<T*>(elements) + number * batch_stride;
  }
};

// C = alpha A B + beta C. A has m rows, B has n columns.
struct Product {
  bool is_a_transposed, is_b_transposed;
  int m, n, k, batch;
  float alpha, beta;
  Matrix a, b, c;
};

template <typename F>
void VisitType(int type, const F& f) {
  if (type == kHalf) f(Tag<Half>());
  if (type == kBFloat) f(Tag<BFloat>());
  if (type == kFloat) f(Tag<float>());
  if (type == kDouble) f(Tag<double>());
}

// The elements of a matrix as floats, in column-major or row-major order.
std::vector<float> ElementsOf(const Matrix& matrix, int64_t number, int num_rows, int num_columns,
                              bool by_columns) {
  std::vector<float> found(static_cast<size_t>(num_rows) * static_cast<size_t>(num_columns));
  VisitType(matrix.type, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const T* from = matrix.At<T>(number);
    for (int64_t column = 0; column < num_columns; ++column) {
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t place = by_columns ? column * num_rows + row : row * num_columns + column;
        found[static_cast<size_t>(place)] = static_cast<float>(from[column * matrix.stride + row]);
      }
    }
  });
  return found;
}

void Multiply(const Product& p, int64_t number) {
  // Column-major copies of A and B.
  const std::vector<float> a = p.is_a_transposed ? ElementsOf(p.a, number, p.k, p.m, false)
                                                 : ElementsOf(p.a, number, p.m, p.k, true);
  const std::vector<float> b = p.is_b_transposed ? ElementsOf(p.b, number, p.n, p.k, false)
                                                 : ElementsOf(p.b, number, p.k, p.n, true);
  std::vector<float> sums(static_cast<size_t>(p.m));
  for (int64_t column = 0; column < p.n; ++column) {
    for (float& sum : sums) sum = 0;
    for (int64_t i = 0; i < p.k; ++i) {
      const float factor = b[static_cast<size_t>(column * p.k + i)];
      const float* from = a.data() + i * p.m;
      for (int row = 0; row < p.m; ++row) sums[static_cast<size_t>(row)] += factor * from[row];
    }
    VisitType(p.c.type, [&](auto tag) {
      using T = typename decltype(tag)::Type;
      T* to = p.c.At<T>(number) + column * p.c.stride;
      for (int row = 0; row < p.m; ++row) {
        const float before = p.beta == 0 ? 0 : p.beta * static_cast<float>(to[row]);
        to[row] = static_cast<T>(p.alpha * sums[static_cast<size_t>(row)] + before);
      }
    });
  }
}

const char* Run(const void* parameters) {
  const auto& product = *static_cast<const Product*>(parameters);
  for (int64_t number = 0; number < product.batch; ++number) Multiply(product, number);
  return nullptr;
}

float FactorOf(const void* factor, int compute_type) {
  const bool is_half = compute_type == kComputesInHalf || compute_type == kComputesInHalfPedantic;
  return is_half ? static_cast<float>(*static_cast<const Half*>(factor))
                 : *static_cast<const float*>(factor);
}

int LaunchProduct(void** handle, const char* name, const Product& product) {
  return StandInLaunch(*handle, name, Run, &product, sizeof(product));
}

}  // namespace

API int cublasSetStream_v2(void** handle, void* stream) {
  *handle = stream;
  return 0;
}

API int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return 0;
}

API const char* cublasGetStatusName(int) { return "status"; }
API const char* cublasGetStatusString(int) { return "status"; }

CREATE(cublasCreate_v2)

LAUNCH(cublasDgeam)
LAUNCH(cublasDgemmBatched)
LAUNCH(cublasDgemmStridedBatched)
LAUNCH(cublasDgemm_v2)
LAUNCH(cublasDgetrfBatched)
LAUNCH(cublasDgetriBatched)
LAUNCH(cublasScopy_v2)
LAUNCH(cublasSgeam)
LAUNCH(cublasSgetrfBatched)
LAUNCH(cublasSgetriBatched)
LAUNCH(cublasSscal_v2)

API int cublasGemmStridedBatchedEx(void** handle, int transpose_a, int transpose_b, int m, int n,
                                   int k, const void* alpha, void* a, int a_type, int a_stride,
                                   long long a_batch, void* b, int b_type, int b_stride,
                                   long long b_batch, const void* beta, void* c, int c_type,
                                   int c_stride, long long c_batch, int batch, int compute_type,
                                   int) {
  return LaunchProduct(handle, "cublasGemmStridedBatchedEx",
                       {transpose_a != kNotTransposed, transpose_b != kNotTransposed, m, n, k,
                        batch, FactorOf(alpha, compute_type), FactorOf(beta, compute_type),
                        {a, a_type, a_stride, a_batch}, {b, b_type, b_stride, b_batch},
                        {c, c_type, c_stride, c_batch}});
}

API int cublasGemmBatchedEx(void** handle, int transpose_a, int transpose_b, int m, int n, int k,
                            const void* alpha, void* a, int a_type, int a_stride, void* b,
                            int b_type, int b_stride, const void* beta, void* c, int c_type,
                            int c_stride, int batch, int compute_type, int) {
  return LaunchProduct(handle, "cublasGemmBatchedEx",
                       {transpose_a != kNotTransposed, transpose_b != kNotTransposed, m, n, k,
                        batch, FactorOf(alpha, compute_type), FactorOf(beta, compute_type),
                        {a, a_type, a_stride, 0, true}, {b, b_type, b_stride, 0, true},
                        {c, c_type, c_stride, 0, true}});
}

API int cublasSgemmBatched(void** handle, int transpose_a, int transpose_b, int m, int n, int k,
                           const float* alpha, void* a, int a_stride, void* b, int b_stride,
                           const float* beta, void* c, int c_stride, int batch) {
  return LaunchProduct(handle, "cublasSgemmBatched",
                       {transpose_a != kNotTransposed, transpose_b != kNotTransposed, m, n, k,
                        batch, *alpha, *beta, {a, kFloat, a_stride, 0, true},
                        {b, kFloat, b_stride, 0, true}, {c, kFloat, c_stride, 0, true}});
}

API int cublasGemmEx(void** handle, int transpose_a, int transpose_b, int m, int n, int k,
                     const void* alpha, void* a, int a_type, int a_stride, void* b, int b_type,
                     int b_stride, const void* beta, void* c, int c_type, int c_stride,
                     int compute_type, int) {
  return LaunchProduct(handle, "cublasGemmEx",
                       {transpose_a != kNotTransposed, transpose_b != kNotTransposed, m, n, k, 1,
                        FactorOf(alpha, compute_type), FactorOf(beta, compute_type),
                        {a, a_type, a_stride, 0}, {b, b_type, b_stride, 0},
                        {c, c_type, c_stride, 0}});
}

API int cublasSgemmStridedBatched(void** handle, int transpose_a, int transpose_b, int m, int n,
                                  int k, const float* alpha, void* a, int a_stride,
                                  long long a_batch, void* b, int b_stride, long long b_batch,
                                  const float* beta, void* c, int c_stride, long long c_batch,
                                  int batch) {
  return LaunchProduct(handle, "cublasSgemmStridedBatched",
                       {transpose_a != kNotTransposed, transpose_b != kNotTransposed, m, n, k,
                        batch, *alpha, *beta, {a, kFloat, a_stride, a_batch},
                        {b, kFloat, b_stride, b_batch}, {c, kFloat, c_stride, c_batch}});
}

API int cublasSgemm_v2(void** handle, int transpose_a, int transpose_b, int m, int n, int k,
                       const float* alpha, void* a, int a_stride, void* b, int b_stride,
                       const float* beta, void* c, int c_stride) {
  return LaunchProduct(handle, "cublasSgemm_v2",
                       {transpose_a != kNotTransposed, transpose_b != kNotTransposed, m, n, k, 1,
                        *alpha, *beta, {a, kFloat, a_stride, 0}, {b, kFloat, b_stride, 0},
                        {c, kFloat, c_stride, 0}});
}

NOTHING(cublasDestroy_v2)
NOTHING(cublasSetMathMode)
