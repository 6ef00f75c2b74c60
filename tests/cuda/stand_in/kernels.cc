#include <map>

#include <dlfcn.h>

#include "state.h"

using namespace stand_in;

namespace {

constexpr int kBlockSharedBytes = 232448;  // of an H100
std::map<const void*, std::string> kernel_names;

// Does nothing unless kernels are to compute. Logs an unknown kernel, which does nothing.
Computation ComputationOf(const std::string& name, void** parameters, Extent grid, Extent block) {
  const Computation nothing = [] {};
  if (!IsComputing()) return nothing;
  Lock lock;
  static void* library = dlopen("libstand_in_kernels.so", RTLD_NOW);
  static const auto* make =
      static_cast<const MakeComputation*>(dlsym(library, "StandInMakeComputation"));
  const Computation computation = (*make)(name, parameters, grid, block);
  if (computation) return computation;
  Log("does nothing", name);
  return nothing;
}

int LaunchKernel(const void* kernel, Extent grid, Extent block, void** parameters, void* stream) {
  std::string name;
  {
    Lock lock;
    const auto found = kernel_names.find(kernel);
    name = found == kernel_names.end() ? "unknown" : found->second;
  }
  const auto text = [](Extent e) {
    return Number(e.x) + "x" + Number(e.y) + "x" + Number(e.z);
  };
  const std::string about = name + '\t' + text(grid) + '\t' + text(block);
  if (int error = Called("kernel", about)) return error;
  return Work(stream, {name, ComputationOf(name, parameters, grid, block), kKernelNode, 0});
}

}  // namespace

// Kernels. The compiler registers each by the address of the function that launches it.

API void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*,
                                void*, void*, void*, int*) {
  Lock lock;
  kernel_names[function] = name;
}

API int __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return 0;
}

namespace {

struct Configuration {
  Extent grid, block;
  size_t shared_bytes;
  void* stream;
};
constexpr int kMaxDepth = 8;
thread_local Configuration configurations[kMaxDepth];
thread_local int num_configurations;

struct LaunchConfiguration {
  Extent grid, block;
  size_t shared_bytes;
  void* stream;
};

}  // namespace

API unsigned __cudaPushCallConfiguration(Extent grid, Extent block, size_t shared_bytes,
                                         void* stream) {
  if (num_configurations == kMaxDepth) return kInvalidValue;
  configurations[num_configurations++] = {grid, block, shared_bytes, stream};
  return 0;
}

API int __cudaPopCallConfiguration(Extent* grid, Extent* block, size_t* shared_bytes,
                                   void** stream) {
  if (num_configurations == 0) return kInvalidValue;
  const Configuration& last = configurations[--num_configurations];
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *stream = last.stream;
  return 0;
}

API int __cudaLaunchKernel(const void* kernel, Extent grid, Extent block, void** parameters,
                           size_t, void* stream) {
  return LaunchKernel(kernel, grid, block, parameters, stream);
}
API int cudaLaunchKernel(const void* kernel, Extent grid, Extent block, void** parameters,
                         size_t, void* stream) {
  return LaunchKernel(kernel, grid, block, parameters, stream);
}
API int cudaLaunchCooperativeKernel(const void* kernel, Extent grid, Extent block,
                                    void** parameters, size_t, void* stream) {
  return LaunchKernel(kernel, grid, block, parameters, stream);
}
API int cudaLaunchKernelExC(const LaunchConfiguration* c, const void* kernel,
                            void** parameters) {
  return LaunchKernel(kernel, c->grid, c->block, parameters, c->stream);
}

API int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  if (int error = Called("cudaLaunchHostFunc")) return error;
  return Work(stream, {"host function", [=] { function(argument); }, kHostNode, 0});
}

API int cudaFuncGetAttributes(char* attributes, const void*) {
  memset(attributes, 0, 144);
  const std::map<size_t, int> found = {
      {24, 1024}, {28, 64}, {32, 90}, {36, 90}, {44, kBlockSharedBytes}};
  for (auto [offset, value] : found) memcpy(attributes + offset, &value, sizeof(value));
  return 0;
}

API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t,
                                                               unsigned) {
  *count = 2;
  return 0;
}

// Functions that ONNX Runtime links to and does not call here.

#define UNUSED(name) \
  API int name() { return Called(#name) ? last_error : kInvalidValue; }
UNUSED(cudaFreeAsync)
UNUSED(cudaGetDriverEntryPointByVersion)
UNUSED(cudaKernelSetAttributeForDevice)
UNUSED(cudaLibraryGetKernel)
UNUSED(cudaLibraryLoadData)
UNUSED(cudaLibraryUnload)
UNUSED(cudaMallocFromPoolAsync)
UNUSED(cudaMemPoolCreate)
UNUSED(cudaMemPoolDestroy)
UNUSED(cudaMemPoolGetAttribute)
UNUSED(cudaMemPoolSetAttribute)
UNUSED(cudaMemPoolTrimTo)

#define NOTHING(name) \
  API int name() { return 0; }
NOTHING(cudaFuncSetAttribute)
