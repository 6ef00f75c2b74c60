#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

// PTX, which the driver compiles for the devices. DEVICE_CODE_80 and DEVICE_CODE_90 are the paths
// of its files.
asm(".section .rodata\n"
    "triune_device_code_80:\n"
    ".incbin \"" DEVICE_CODE_80 "\"\n"
    ".byte 0\n"
    "triune_device_code_90:\n"
    ".incbin \"" DEVICE_CODE_90 "\"\n"
    ".byte 0\n"
    ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const char triune_device_code_80[];
extern "C" __attribute__((visibility("hidden"))) const char triune_device_code_90[];

namespace cuda {
namespace {

// Names in the driver's headers: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, CUlaunchAttribute, CUlaunchConfig.
constexpr int kCapabilityMajor = 75;
constexpr int kStreamSerialization = 6;

struct LaunchAttribute {
  int id;
  alignas(8) union {
    char bytes[64];
    int is_programmatic;
  } value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};

#define QUOTE(name) #name,
constexpr const char* kNames[kNumKernels] = {FOR_EACH_KERNEL(QUOTE)};

struct Driver {
  int (*initialize)(unsigned flags);
  int (*count_devices)(int* count);
  int (*get_device)(int* device, int ordinal);
  int (*get_attribute)(int* value, int attribute, int device);
  int (*load_library)(void** library, const void* code, void* options, void** option_values,
                      unsigned num_options, void* library_options, void** library_option_values,
                      unsigned num_library_options);
  int (*get_kernel)(void** kernel, void* library, const char* name);
  int (*launch)(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                void** parameters, void** extra);
  int (*launch_as)(const LaunchConfig* config, void* kernel, void** parameters,
                   void** extra);  // null in drivers without cuLaunchKernelEx
  int (*name_error)(int error, const char** name);
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Driver driver;
void* kernels[kNumKernels];
bool is_loaded = false, may_start_early = false;

// Whether kernels may start before the previous ones have ended, given the major compute capability
// that all devices have.
constexpr bool start_early(int capability) { return capability >= 9; }

// An error message with the name of the driver's error, such as CUDA_ERROR_OUT_OF_MEMORY; valid
// until the thread's next one.
const char* failed(const char* what, int error) {
  static thread_local char message[128];
  const char* name = nullptr;
  if (driver.name_error(error, &name) || !name) name = "unknown";
  snprintf(message, sizeof(message), "%s: error %d, %s", what, error, name);
  return message;
}

template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

// The lowest major compute capability among the devices; 0 if it is unknown.
int common_capability() {
  int count = 0, common = 0;
  if (driver.count_devices(&count)) return 0;
  for (int ordinal = 0; ordinal < count; ordinal++) {
    int device = 0, capability = 0;
    if (driver.get_device(&device, ordinal) ||
        driver.get_attribute(&capability, kCapabilityMajor, device)) {
      return 0;
    }
    if (ordinal == 0 || capability < common) common = capability;
  }
  return common;
}

// Returns null if everything was loaded, else an error message.
const char* load_all() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return "libcuda.so.1 cannot be opened";
  if (!find(library, "cuInit", driver.initialize) ||
      !find(library, "cuDeviceGetCount", driver.count_devices) ||
      !find(library, "cuDeviceGet", driver.get_device) ||
      !find(library, "cuDeviceGetAttribute", driver.get_attribute) ||
      !find(library, "cuLibraryLoadData", driver.load_library) ||
      !find(library, "cuLibraryGetKernel", driver.get_kernel) ||
      !find(library, "cuLaunchKernel", driver.launch) ||
      !find(library, "cuGetErrorName", driver.name_error)) {
    return "the CUDA driver is too old";
  }
  const bool has_launch_as = find(library, "cuLaunchKernelEx", driver.launch_as);
  if (const int error = driver.initialize(0)) {
    return failed("the CUDA driver cannot be initialized", error);
  }
  const int capability = common_capability();
  const char* device_code = capability >= 9 ? triune_device_code_90 : triune_device_code_80;
  void* code = nullptr;
  if (const int error =
          driver.load_library(&code, device_code, nullptr, nullptr, 0, nullptr, nullptr, 0)) {
    return failed("the CUDA driver cannot load the device code", error);
  }
  for (int kernel = 0; kernel < kNumKernels; kernel++) {
    if (const int error = driver.get_kernel(&kernels[kernel], code, kNames[kernel])) {
      return failed(kNames[kernel], error);
    }
  }
  may_start_early = has_launch_as && start_early(capability);
  return nullptr;
}

int launch_early(void* kernel, unsigned num_blocks, unsigned num_threads, void* stream,
                 void** parameters) {
  LaunchAttribute attribute{};
  attribute.id = kStreamSerialization;
  attribute.value.is_programmatic = 1;
  const LaunchConfig config = {num_blocks, 1, 1, num_threads, 1, 1, 0, stream, &attribute, 1};
  return driver.launch_as(&config, kernel, parameters, nullptr);
}

}  // namespace

const char* load() {
  pthread_mutex_lock(&mutex);
  const char* failure = is_loaded ? nullptr : load_all();
  if (!failure) is_loaded = true;
  pthread_mutex_unlock(&mutex);
  return failure;
}

const char* launch(void* stream, int kernel, int64_t num_blocks, int num_threads,
                   void* arguments) {
  if (!num_blocks) return nullptr;
  void* parameters[] = {arguments};
  const unsigned blocks = static_cast<unsigned>(num_blocks);
  const unsigned threads = static_cast<unsigned>(num_threads);
  // The default stream also waits for other streams, so its kernels do not start early. If an early
  // start is refused, the kernel is launched to start after the previous one.
  if (stream && may_start_early &&
      !launch_early(kernels[kernel], blocks, threads, stream, parameters)) {
    return nullptr;
  }
  const int error = driver.launch(kernels[kernel], blocks, 1, 1, threads, 1, 1, 0, stream,
                                  parameters, nullptr);
  return error ? failed(kNames[kernel], error) : nullptr;
}

ort::Status* launch(const ort::Api& api, const ort::KernelContext* context, int kernel,
                    int64_t num_blocks, int num_threads, void* arguments) {
  void* stream = nullptr;
  RETURN_IF_FAILED(api.GpuStream(context, &stream));
  const char* failure = launch(stream, kernel, num_blocks, num_threads, arguments);
  return failure ? api.CreateStatus(ort::kRuntimeException, failure) : nullptr;
}

}  // namespace cuda
