#include "state.h"

#include <map>

using namespace stand_in;

namespace {

struct Allocation {
  size_t size;
  bool is_of_device;
};
std::map<uintptr_t, Allocation> allocations;
constexpr int kDeviceToDevice = 3;
size_t memory_limit = size_t{80} << 30, memory_used;

int Allocate(const char* name, void** pointer, size_t size, bool is_of_device) {
  if (int error = CalledOutside(name, Number(size))) return error;
  Lock lock;
  void* made = nullptr;
  if ((is_of_device && memory_used + size > memory_limit) ||
      posix_memalign(&made, 512, size + 1)) {
    return Fail(kOutOfMemory);
  }
  memset(made, 0, size);
  allocations[reinterpret_cast<uintptr_t>(made)] = {size, is_of_device};
  if (is_of_device) memory_used += size;
  ++num_alive;
  *pointer = made;
  return 0;
}

int Release(const char* name, void* pointer) {
  if (int error = CalledOutside(name)) return error;
  if (pointer == nullptr) return 0;
  Lock lock;
  FinishAll();
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == allocations.end()) return Fail(kInvalidValue);
  if (found->second.is_of_device) memory_used -= found->second.size;
  allocations.erase(found);
  free(pointer);
  --num_alive;
  return 0;
}

const Allocation* AllocationOf(const void* pointer) {
  Lock lock;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto found = allocations.upper_bound(address);
  if (found == allocations.begin()) return nullptr;
  --found;
  return address < found->first + found->second.size ? &found->second : nullptr;
}

int Copy(const char* name, void* target, const void* source, size_t size, int kind, void* stream) {
  const std::string whole = std::string(name) + ":" + kDirections[kind];
  if (int error = Called(whole, Number(size))) return error;
  const auto copy = [=] { memcpy(target, source, size); };
  return Work(stream, {whole, copy, kCopyNode, kind});
}

}  // namespace

API void StandInLimitMemory(size_t size) { memory_limit = size; }

API int cudaMemGetInfo(size_t* available, size_t* total) {
  *total = memory_limit;
  *available = memory_limit - memory_used;
  return 0;
}

API int cudaMalloc(void** p, size_t size) { return Allocate("cudaMalloc", p, size, true); }
API int cudaMallocHost(void** p, size_t size) { return Allocate("cudaMallocHost", p, size, false); }
API int cudaHostAlloc(void** p, size_t size, unsigned) {
  return Allocate("cudaHostAlloc", p, size, false);
}
API int cudaFree(void* p) { return Release("cudaFree", p); }
API int cudaFreeHost(void* p) { return Release("cudaFreeHost", p); }

API int cudaPointerGetAttributes(int* attributes, const void* pointer) {
  memset(attributes, 0, 88);
  const Allocation* found = AllocationOf(pointer);
  attributes[0] = found == nullptr ? 0 : found->is_of_device ? 2 : 1;
  return 0;
}

API int cudaMemcpy(void* target, const void* source, size_t size, int kind) {
  const std::string name = std::string("cudaMemcpy:") + kDirections[kind];
  if (int error = CalledOutside(name, Number(size))) return error;
  WaitUntil(BusyUntil());
  Lock lock;
  const auto copy = [=] { memcpy(target, source, size); };
  if (int error = Work(nullptr, {name, copy, kCopyNode, kind})) return error;
  if (kind != kDeviceToDevice) Finish(&default_stream);
  return 0;
}

API int cudaMemcpyAsync(void* target, const void* source, size_t size, int kind, void* stream) {
  return Copy("cudaMemcpyAsync", target, source, size, kind, stream);
}

API int cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                          size_t source_pitch, size_t width, size_t height, int kind,
                          void* stream) {
  const std::string name = std::string("cudaMemcpy2DAsync:") + kDirections[kind];
  if (int error = Called(name)) return error;
  const auto copy = [=] {
    for (size_t i = 0; i < height; ++i) {
      memcpy(static_cast<char*>(target) + i * target_pitch,
             static_cast<const char*>(source) + i * source_pitch, width);
    }
  };
  return Work(stream, {name, copy, kCopyNode, kind});
}

// Constants of device code are zeros.
API int cudaMemcpyFromSymbol(void* target, const void*, size_t size, size_t, int) {
  if (int error = CalledOutside("cudaMemcpyFromSymbol")) return error;
  memset(target, 0, size);
  return 0;
}

API int cudaMemset(void* target, int value, size_t size) {
  if (int error = CalledOutside("cudaMemset")) return error;
  return Work(nullptr, {"cudaMemset", [=] { memset(target, value, size); }, kFillNode, 0});
}

API int cudaMemsetAsync(void* target, int value, size_t size, void* stream) {
  if (int error = Called("cudaMemsetAsync", Number(size))) return error;
  return Work(stream, {"cudaMemsetAsync", [=] { memset(target, value, size); }, kFillNode, 0});
}
