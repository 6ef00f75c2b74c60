// Implements native/cuda/driver.h on a CPU: launches run in the emulator, one at a time.

#include "../driver.h"

#include <pthread.h>

#include "../device/kernels.cc"
#include "emulator.h"

namespace cuda {
namespace {

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

template <typename Arguments>
void call(void (*kernel)(Arguments), const void* arguments) {
  kernel(*static_cast<const Arguments*>(arguments));
}

#define RUN(name) [](const void* arguments) { call(name, arguments); },
constexpr emulator::Kernel kKernels[kNumKernels] = {FOR_EACH_KERNEL(RUN)};

}  // namespace

const char* load() { return nullptr; }

const char* launch(void*, int kernel, int64_t num_blocks, int num_threads, void* arguments) {
  pthread_mutex_lock(&mutex);
  const char* failure = emulator::run(kKernels[kernel], num_blocks, num_threads, arguments);
  pthread_mutex_unlock(&mutex);
  return failure;
}

ort::Status* launch(const ort::Api& api, const ort::KernelContext*, int kernel, int64_t num_blocks,
                    int num_threads, void* arguments) {
  const char* failure = launch(nullptr, kernel, num_blocks, num_threads, arguments);
  return failure ? api.CreateStatus(ort::kRuntimeException, failure) : nullptr;
}

}  // namespace cuda
