// Stands for the CUDA runtime in tests, on machines without a GPU. A device's memory is memory of
// the host. Kernels do nothing; copies, and the work of tests, are done: at once, or as late as
// possible. What CUDA does not allow while a stream is captured fails as it does there.
//
// Source: CUDA Runtime API 13.0, "Stream Management", "Graph Management", "Memory Management".

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "no_standard_library.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

// Of cudaError_t.
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureIsolation = 905;
constexpr int kCaptureImplicit = 906;

// Of cudaGraphNodeType.
enum NodeType { kKernelNode, kCopyNode, kFillNode, kHostNode };
// Of cudaMemcpyKind.
constexpr const char* kDirections[] = {"host", "in", "out", "device", "default"};

struct Extent {
  unsigned x, y, z;
};

struct Node {
  std::string name;
  std::function<void()> run;
  NodeType type;
  int64_t kind;  // of a copy
};

struct Graph {
  std::vector<Node> nodes;
};

struct Stream {
  std::string name;
  Graph* captured = nullptr;
  bool is_broken = false;  // the capture has failed
};

struct Event {
  size_t count = 0;  // of late work before it
  bool is_captured = false;
};

// A thread may hold it several times: a test's function calls back.
pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

struct Lock {
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
};

std::string calls;
std::string failing;  // the call that fails, and its error
int failure;
int64_t num_alive;       // objects and allocations that are not destroyed
size_t memory_limit = size_t{80} << 30, memory_used;
int num_streams;
Stream default_stream{"default"};
thread_local Stream* capturing;  // of this thread
thread_local int last_error;

std::map<const void*, std::string> kernel_names;
struct Allocation {
  size_t size;
  bool is_of_device;
};
std::map<uintptr_t, Allocation> allocations;

bool is_late;
std::deque<std::function<void()>> late;
size_t num_added, num_done;

void Log(const std::string& name, const std::string& about = "") {
  Lock lock;
  calls += name;
  if (!about.empty()) calls += '\t' + about;
  calls += '\n';
}

int Fail(int error) { return last_error = error; }

// Logs a call. Returns its error if it is to fail.
int Called(const std::string& name, const std::string& about = "") {
  Log(name, about);
  return name == failing ? Fail(failure) : 0;
}

// Logs a call that may not be made while this thread captures.
int CalledOutside(const std::string& name, const std::string& about = "") {
  if (int error = Called(name, about)) return error;
  if (capturing == nullptr) return 0;
  Log("violation", name);
  capturing->is_broken = true;
  return Fail(kCaptureUnsupported);
}

Stream* StreamOf(void* handle) {
  // 1 and 2: cudaStreamLegacy and cudaStreamPerThread.
  return reinterpret_cast<uintptr_t>(handle) <= 2 ? &default_stream : static_cast<Stream*>(handle);
}

// Does what was put on streams before the first `count`.
void Finish(size_t count) {
  for (; num_done < count; ++num_done) {
    auto next = std::move(late.front());
    late.pop_front();
    next();
  }
}

int Work(void* handle, const Node& node) {
  Lock lock;
  Stream* stream = StreamOf(handle);
  if (stream->captured != nullptr) {
    stream->captured->nodes.push_back(node);
    return 0;
  }
  if (capturing != nullptr && stream == &default_stream) {
    Log("violation", node.name + " on the default stream");
    capturing->is_broken = true;
    return Fail(kCaptureImplicit);
  }
  late.push_back(node.run);
  ++num_added;
  if (!is_late) Finish(num_added);
  return 0;
}

template <typename T>
int Make(const char* name, void** made, T* object) {
  if (int error = Called(name)) {
    delete object;
    return error;
  }
  ++num_alive;
  *made = object;
  return 0;
}

template <typename T>
int Destroy(const char* name, void* object) {
  delete static_cast<T*>(object);
  --num_alive;
  return Called(name);
}

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
  Finish(num_added);
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

int Launch(const void* kernel, Extent grid, Extent block, void* stream) {
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
  return Work(stream, {name, [] {}, kKernelNode, 0});
}

void Run(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.type != kHostNode) node.run();
  }
}

}  // namespace

// What tests call.

API const char* StandInCalls() { return calls.c_str(); }
API int64_t StandInNumAlive() { return num_alive; }
API void StandInLimitMemory(size_t size) { memory_limit = size; }

API void StandInReset() {
  Lock lock;
  failing.clear();
  calls.clear();
}

API void StandInFail(const char* name, int error) {
  failing = name;
  failure = error;
}

// Whether streams work as late as possible: when an event after it is waited for.
API void StandInBeLate(int late_or_not) {
  Lock lock;
  is_late = late_or_not != 0;
  if (!is_late) Finish(num_added);
}

API int StandInWork(void* stream, void (*run)(), int type, int64_t kind) {
  return Work(stream, {"work", run, static_cast<NodeType>(type), kind});
}

// A launch by another library.
API int StandInLaunch(void* stream, const char* name) {
  if (int error = Called("kernel", name)) return error;
  return Work(stream, {name, [] {}, kKernelNode, 0});
}

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

// Of cudaDeviceAttr, as of an H100; others are 1.
const std::map<int, int> kAttributes = {
    {1, 1024},          // threads of a block
    {8, 49152},         // shared memory of a block
    {10, 32},           // threads of a warp
    {16, kMultiprocessors},
    {38, 50 << 20},     // L2 cache
    {39, 2048},         // threads of a multiprocessor
    {75, 9},            // compute capability
    {76, 0},
    {81, kSharedBytes},       // of a multiprocessor
    {97, kBlockSharedBytes},  // of a block that asks for it
    {106, 32},          // blocks of a multiprocessor
};

// Fields of cudaDeviceProp, by their offsets, and its size.
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

API int cudaMemGetInfo(size_t* available, size_t* total) {
  *total = memory_limit;
  *available = memory_limit - memory_used;
  return 0;
}

API int cudaDeviceSynchronize() {
  if (int error = CalledOutside("cudaDeviceSynchronize")) return error;
  Finish(num_added);
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

// Memory.

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
  Finish(num_added);
  memcpy(target, source, size);
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
  Finish(num_added);
  memset(target, value, size);
  return 0;
}

API int cudaMemsetAsync(void* target, int value, size_t size, void* stream) {
  if (int error = Called("cudaMemsetAsync", Number(size))) return error;
  return Work(stream, {"cudaMemsetAsync", [=] { memset(target, value, size); }, kFillNode, 0});
}

// Kernels. The compiler registers them, by the address of a function that launches each.

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

API int __cudaLaunchKernel(const void* kernel, Extent grid, Extent block, void**, size_t,
                           void* stream) {
  return Launch(kernel, grid, block, stream);
}
API int cudaLaunchKernel(const void* kernel, Extent grid, Extent block, void**, size_t,
                         void* stream) {
  return Launch(kernel, grid, block, stream);
}
API int cudaLaunchCooperativeKernel(const void* kernel, Extent grid, Extent block, void**, size_t,
                                    void* stream) {
  return Launch(kernel, grid, block, stream);
}
API int cudaLaunchKernelExC(const LaunchConfiguration* c, const void* kernel, void**) {
  return Launch(kernel, c->grid, c->block, c->stream);
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

// Streams.

API int cudaStreamCreateWithFlags(void** stream, unsigned) {
  return Make("cudaStreamCreateWithFlags", stream,
              new Stream{"stream " + Number(++num_streams)});
}
API int cudaStreamCreate(void** stream) { return cudaStreamCreateWithFlags(stream, 0); }
API int cudaStreamDestroy(void* stream) { return Destroy<Stream>("cudaStreamDestroy", stream); }

API int cudaStreamSynchronize(void* handle) {
  Stream* stream = StreamOf(handle);
  if (int error = Called("cudaStreamSynchronize", stream->name)) return error;
  if (stream->captured != nullptr) {
    Log("violation", "cudaStreamSynchronize");
    stream->is_broken = true;
    return Fail(kCaptureUnsupported);
  }
  Lock lock;
  Finish(num_added);
  return 0;
}

API int cudaStreamWaitEvent(void* handle, void* event, unsigned) {
  if (int error = Called("cudaStreamWaitEvent")) return error;
  Stream* stream = StreamOf(handle);
  if ((stream->captured != nullptr) == static_cast<Event*>(event)->is_captured) return 0;
  Log("violation", "cudaStreamWaitEvent");
  stream->is_broken = true;
  return Fail(kCaptureIsolation);
}

API int cudaStreamIsCapturing(void* stream, int* status) {
  *status = StreamOf(stream)->captured != nullptr;
  return 0;
}

API int cudaStreamBeginCapture(void* handle, int) {
  if (int error = Called("cudaStreamBeginCapture")) return error;
  Stream* stream = StreamOf(handle);
  if (stream == &default_stream) return Fail(kCaptureUnsupported);
  stream->captured = new Graph;
  stream->is_broken = false;
  capturing = stream;
  return 0;
}

// As CUDA's, it ends the capture even if it fails.
API int cudaStreamEndCapture(void* handle, void** graph) {
  Stream* stream = StreamOf(handle);
  Graph* captured = stream->captured;
  stream->captured = nullptr;
  if (capturing == stream) capturing = nullptr;
  int error = Called("cudaStreamEndCapture");
  if (error == 0 && (captured == nullptr || stream->is_broken)) error = Fail(kCaptureInvalidated);
  if (error) {
    delete captured;
    *graph = nullptr;
    return error;
  }
  ++num_alive;
  *graph = captured;
  return 0;
}

// Graphs.

API int cudaGraphGetNodes(void* graph, void** nodes, size_t* count) {
  auto& all = static_cast<Graph*>(graph)->nodes;
  for (size_t i = 0; nodes != nullptr && i < *count; ++i) nodes[i] = &all[i];
  *count = all.size();
  return Called("cudaGraphGetNodes");
}

API int cudaGraphNodeGetType(void* node, int* type) {
  *type = static_cast<Node*>(node)->type;
  return Called("cudaGraphNodeGetType");
}

API int cudaGraphMemcpyNodeGetParams(void* node, char* parameters) {
  const int kind = static_cast<int>(static_cast<Node*>(node)->kind);
  memset(parameters, 0xff, 160);
  memcpy(parameters + 152, &kind, sizeof(kind));
  return Called("cudaGraphMemcpyNodeGetParams");
}

API int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  return Make("cudaGraphInstantiate", executable, new Graph(*static_cast<Graph*>(graph)));
}
API int cudaGraphDestroy(void* graph) { return Destroy<Graph>("cudaGraphDestroy", graph); }
API int cudaGraphExecDestroy(void* graph) { return Destroy<Graph>("cudaGraphExecDestroy", graph); }

API int cudaGraphLaunch(void* executable, void* stream) {
  const Graph graph = *static_cast<Graph*>(executable);
  if (int error = Called("cudaGraphLaunch", Number(graph.nodes.size()))) return error;
  return Work(stream, {"graph", [=] { Run(graph); }, kKernelNode, 0});
}

// Events.

API int cudaEventCreateWithFlags(void** event, unsigned) {
  return Make("cudaEventCreateWithFlags", event, new Event);
}
API int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
API int cudaEventDestroy(void* event) { return Destroy<Event>("cudaEventDestroy", event); }

API int cudaEventRecord(void* event, void* stream) {
  auto* recorded = static_cast<Event*>(event);
  recorded->count = num_added;
  recorded->is_captured = StreamOf(stream)->captured != nullptr;
  return Called("cudaEventRecord");
}
API int cudaEventRecordWithFlags(void* event, void* stream, unsigned) {
  return cudaEventRecord(event, stream);
}

API int cudaEventSynchronize(void* event) {
  if (int error = Called("cudaEventSynchronize")) return error;
  auto* waited = static_cast<Event*>(event);
  if (waited->is_captured) {
    Log("violation", "cudaEventSynchronize");
    return Fail(kCaptureUnsupported);
  }
  Lock lock;
  Finish(waited->count);
  return 0;
}

API int cudaEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return 0;
}

// What ONNX Runtime links to and does not call here.

#define UNUSED(name) \
  API int name() { return Called(#name) ? failure : kInvalidValue; }
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
