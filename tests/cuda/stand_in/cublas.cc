// Stands for cuBLAS in tests: its products are logged as kernels, and do nothing.

#include "library.h"

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
LAUNCH(cublasGemmBatchedEx)
LAUNCH(cublasGemmEx)
LAUNCH(cublasGemmStridedBatchedEx)
LAUNCH(cublasScopy_v2)
LAUNCH(cublasSgeam)
LAUNCH(cublasSgemmBatched)
LAUNCH(cublasSgemmStridedBatched)
LAUNCH(cublasSgemm_v2)
LAUNCH(cublasSgetrfBatched)
LAUNCH(cublasSgetriBatched)
LAUNCH(cublasSscal_v2)

NOTHING(cublasDestroy_v2)
NOTHING(cublasSetMathMode)
