#include "state.h"

#include <map>

using namespace stand_in;

// Devices.

API int cudaGetDeviceCount(int* count) {
  *count = 1;
  return Called("cudaGetDeviceCount");
}

API int cudaGetDevice(int* device) {
  *device = 0;
  return 0;
}

API int cudaSetDevice(int device) {
  if (device != 0) return Fail(kInvalidDevice);
  return Called("cudaSetDevice");
}

API int cudaDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

API int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}

namespace {

constexpr int kMultiprocessors = 132, kSharedBytes = 233472, kBlockSharedBytes = 232448;

// cudaDeviceAttr of an H100; all other attributes are 1.
const std::map<int, int> kAttributes = {
    {1, 1024},          // threads per block
    {8, 49152},         // shared memory per block
    {10, 32},           // threads per warp
    {16, kMultiprocessors},
    {38, 50 << 20},     // L2 cache
    {39, 2048},         // threads per multiprocessor
    {75, 9},            // compute capability
    {76, 0},
    {81, kSharedBytes},       // shared memory per multiprocessor
    {97, kBlockSharedBytes},  // shared memory per block, opt-in
    {106, 32},          // blocks per multiprocessor
};

// The size of cudaDeviceProp, and offsets of its fields.
constexpr size_t kPropertiesSize = 1008;
const std::map<size_t, int> kProperties = {
    {304, 65536}, {308, 32}, {320, 1024}, {324, 1024}, {328, 1024}, {332, 64}, {336, 2147483647},
    {340, 65535}, {344, 65535}, {360, 9}, {364, 0}, {384, kMultiprocessors}, {560, 1}, {588, 1},
    {592, 5120}, {596, 50 << 20}, {604, 2048}, {632, 65536}, {668, 1}, {688, 32}, {720, 1},
};
const std::map<size_t, size_t> kLongProperties = {
    {288, size_t{80} << 30}, {296, 49152}, {352, 65536}, {624, kSharedBytes},
    {672, kBlockSharedBytes},
};

}  // namespace

API int cudaGetDeviceProperties(char* properties, int) {
  memset(properties, 0, kPropertiesSize);
  strcpy(properties, "Stand-in");
  for (auto [offset, value] : kProperties) memcpy(properties + offset, &value, sizeof(value));
  for (auto [offset, value] : kLongProperties) memcpy(properties + offset, &value, sizeof(value));
  return 0;
}

API int cudaDeviceGetAttribute(int* value, int attribute, int) {
  const auto found = kAttributes.find(attribute);
  *value = found == kAttributes.end() ? 1 : found->second;
  return 0;
}

API int cudaDeviceSynchronize() {
  if (int error = CalledOutside("cudaDeviceSynchronize")) return error;
  WaitUntil(BusyUntil());
  FinishAll();
  return 0;
}

// Errors.

API int cudaGetLastError() {
  const int error = last_error;
  last_error = 0;
  if (error) Log("cudaGetLastError");
  return error;
}

API int cudaPeekAtLastError() { return last_error; }

API const char* cudaGetErrorName(int error) {
  return error == kOutOfMemory ? "cudaErrorMemoryAllocation" : "cudaError";
}

API const char* cudaGetErrorString(int error) {
  if (error == kOutOfMemory) return "out of memory";
  static thread_local char text[32];
  snprintf(text, sizeof(text), "error %d", error);
  return text;
}
