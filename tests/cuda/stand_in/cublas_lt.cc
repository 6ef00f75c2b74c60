// Stands in for cuBLASLt in tests: logs products as kernels, and computes nothing.

#include "library.h"

// sizeof(cublasLtMatmulHeuristicResult_t).
constexpr size_t kResultSize = 96;

API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int,
                                       void* results, int* count) {
  memset(results, 0, kResultSize);
  *count = 1;
  return 0;
}

API int cublasLtMatmul(void*, void*, const void*, const void*, void*, const void*, void*,
                       const void*, const void*, void*, void*, void*, const void*, void*, size_t,
                       void* stream) {
  return StandInLaunch(stream, "cublasLtMatmul", nullptr, nullptr, 0);
}

API int cublasLtMatrixTransform(void*, void*, const void*, const void*, void*, const void*,
                                const void*, void*, void*, void*, void* stream) {
  return StandInLaunch(stream, "cublasLtMatrixTransform", nullptr, nullptr, 0);
}

CREATE(cublasLtCreate)
CREATE(cublasLtMatmulDescCreate)
CREATE(cublasLtMatmulPreferenceCreate)
CREATE(cublasLtMatrixLayoutCreate)
CREATE(cublasLtMatrixTransformDescCreate)

NOTHING(cublasLtDestroy)
NOTHING(cublasLtMatmulAlgoConfigSetAttribute)
NOTHING(cublasLtMatmulAlgoInit)
NOTHING(cublasLtMatmulDescDestroy)
NOTHING(cublasLtMatmulDescSetAttribute)
NOTHING(cublasLtMatmulPreferenceDestroy)
NOTHING(cublasLtMatmulPreferenceSetAttribute)
NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatrixLayoutSetAttribute)
NOTHING(cublasLtMatrixTransformDescDestroy)
