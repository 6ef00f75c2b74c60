// Stands for the CUDA driver in tests: our own kernels are found by name and do nothing.
// Source: CUDA Driver API 13.0, "Library Management", "Execution Control".

#include <stdio.h>

#define API extern "C" __attribute__((visibility("default")))

extern "C" int StandInLaunch(void* stream, const char* name);

namespace {

struct Configuration {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
};

}  // namespace

API int cuInit(unsigned) { return 0; }

API int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}

API int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}

// 75: the major compute capability.
API int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : 0;
  return 0;
}

API int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*,
                          unsigned) {
  *library = nullptr;
  return 0;
}

API int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  *kernel = const_cast<char*>(name);  // which lives as long as our library
  return 0;
}

API int cuLaunchKernel(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned, void* stream,
                       void**, void**) {
  char about[256];
  snprintf(about, sizeof(about), "triune::%s\t%ux%ux%u\t%ux%ux%u", static_cast<char*>(kernel), grid_x,
           grid_y, grid_z, block_x, block_y, block_z);
  return StandInLaunch(stream, about);
}

API int cuLaunchKernelEx(const Configuration* c, void* kernel, void** parameters, void** extra) {
  return cuLaunchKernel(kernel, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z,
                        c->shared_bytes, c->stream, parameters, extra);
}

API int cuTensorMapEncodeTiled() { return 1; }
