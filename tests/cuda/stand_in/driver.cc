// Stands in for the CUDA driver in tests: finds our own kernels by name. If kernels are to compute,
// an emulator runs their device code.
// Source: CUDA Driver API 13.0, "Library Management", "Execution Control".

#include <stdio.h>

#include "library.h"

#include "../../../native/cuda/device/kernels.cc"
#include "../../../native/cuda/driver.h"
#include "../../../native/cuda/emulator/emulator.h"

namespace {

struct KnownKernel {
  const char* name;
  emulator::Kernel run;
  size_t size;  // bytes of its parameter
};

template <typename Arguments>
void Call(void (*kernel)(Arguments), const void* arguments) {
  kernel(*static_cast<const Arguments*>(arguments));
}

template <typename Arguments>
constexpr size_t SizeOf(void (*)(Arguments)) {
  return sizeof(Arguments);
}

#define KNOWN(name) \
  {#name, [](const void* arguments) { Call(name, arguments); }, SizeOf(name)},
constexpr KnownKernel kKernels[] = {FOR_EACH_KERNEL(KNOWN)};

constexpr size_t MostBytes() {
  size_t most = 0;
  for (const KnownKernel& kernel : kKernels) most = kernel.size > most ? kernel.size : most;
  return most;
}

struct Launch {
  emulator::Kernel run;
  unsigned num_blocks, num_threads;
  alignas(16) char arguments[MostBytes()];
};

const char* Run(const void* parameters) {
  const auto& launch = *static_cast<const Launch*>(parameters);
  return emulator::run(launch.run, launch.num_blocks, static_cast<int>(launch.num_threads),
                       launch.arguments);
}

struct Configuration {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
};

}  // namespace

API int cuInit(unsigned) { return 0; }

API int cuGetErrorName(int error, const char** name) {
  *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return 0;
}

API int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}

API int cuDeviceGet(int* device, int) {
  *device = 0;
  return 0;
}

// 75: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR.
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
  for (const KnownKernel& known : kKernels) {
    if (strcmp(known.name, name) == 0) *kernel = const_cast<KnownKernel*>(&known);
  }
  return 0;
}

API int cuLaunchKernel(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned, void* stream,
                       void** parameters, void**) {
  const auto& known = *static_cast<const KnownKernel*>(kernel);
  char about[256];
  snprintf(about, sizeof(about), "triune::%s\t%ux%ux%u\t%ux%ux%u", known.name, grid_x, grid_y,
           grid_z, block_x, block_y, block_z);
  Launch launch{known.run, grid_x, block_x, {}};
  memcpy(launch.arguments, parameters[0], known.size);
  return StandInLaunch(stream, about, Run, &launch, sizeof(launch));
}

API int cuLaunchKernelEx(const Configuration* c, void* kernel, void** parameters, void** extra) {
  return cuLaunchKernel(kernel, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z,
                        c->shared_bytes, c->stream, parameters, extra);
}

API int cuTensorMapEncodeTiled() { return 1; }
