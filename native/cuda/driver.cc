#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>

// PTX, which the driver compiles for the device. DEVICE_CODE is the file's path.
asm(".section .rodata\n"
    "triune_device_code:\n"
    ".incbin \"" DEVICE_CODE "\"\n"
    ".byte 0\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const char triune_device_code[];

namespace cuda {
namespace {

#define QUOTE(name) #name,
constexpr const char* kNames[kNumKernels] = {FOR_EACH_KERNEL(QUOTE)};

struct Driver {
  int (*initialize)(unsigned flags);
  int (*load_library)(void** library, const void* code, void* options, void** option_values,
                      unsigned num_options, void* library_options, void** library_option_values,
                      unsigned num_library_options);
  int (*get_kernel)(void** kernel, void* library, const char* name);
  int (*launch)(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                void** parameters, void** extra);
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Driver driver;
void* kernels[kNumKernels];
bool is_loaded = false;

template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

// Null if everything was loaded, else what failed.
const char* load_all() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return "libcuda.so.1 cannot be opened";
  if (!find(library, "cuInit", driver.initialize) ||
      !find(library, "cuLibraryLoadData", driver.load_library) ||
      !find(library, "cuLibraryGetKernel", driver.get_kernel) ||
      !find(library, "cuLaunchKernel", driver.launch)) {
    return "the CUDA driver is too old";
  }
  void* code = nullptr;
  if (driver.initialize(0) ||
      driver.load_library(&code, triune_device_code, nullptr, nullptr, 0, nullptr, nullptr, 0)) {
    return "the CUDA driver cannot load the device code";
  }
  for (int kernel = 0; kernel < kNumKernels; kernel++) {
    if (driver.get_kernel(&kernels[kernel], code, kNames[kernel])) {
      return "the device code lacks a kernel";
    }
  }
  return nullptr;
}

}  // namespace

ort::Status* load(const ort::Api& api) {
  pthread_mutex_lock(&mutex);
  const char* failure = is_loaded ? nullptr : load_all();
  if (!failure) is_loaded = true;
  pthread_mutex_unlock(&mutex);
  return failure ? api.CreateStatus(ort::kRuntimeException, failure) : nullptr;
}

ort::Status* launch(const ort::Api& api, const ort::KernelContext* context, int kernel,
                    int64_t num_blocks, int num_threads, void* arguments) {
  if (!num_blocks) return nullptr;
  void* stream = nullptr;
  RETURN_IF_FAILED(api.GpuStream(context, &stream));
  void* parameters[] = {arguments};
  const int error = driver.launch(kernels[kernel], static_cast<unsigned>(num_blocks), 1, 1,
                                  static_cast<unsigned>(num_threads), 1, 1, 0, stream, parameters,
                                  nullptr);
  return error ? api.CreateStatus(ort::kRuntimeException, "a CUDA kernel cannot be launched")
               : nullptr;
}

}  // namespace cuda
