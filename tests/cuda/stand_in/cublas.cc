// Stands for cuBLAS in tests: its products are logged as kernels, and do nothing.

#include <stdlib.h>
#include <string.h>

#define API extern "C" __attribute__((visibility("default")))

extern "C" int StandInLaunch(void* stream, const char* name);

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

// Handles and descriptors. A handle begins with its stream.
#define CREATE(name)              \
  API int name(void** made) {     \
    *made = calloc(1, 64);        \
    return *made == nullptr;      \
  }
CREATE(cublasCreate_v2)

#define LAUNCH(name) \
  API int name(void** handle) { return StandInLaunch(*handle, #name); }
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

#define NOTHING(name) \
  API int name() { return 0; }
NOTHING(cublasDestroy_v2)
NOTHING(cublasSetMathMode)
