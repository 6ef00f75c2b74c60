// Stands in for the CUDA runtime in tests, on machines without a GPU. Device memory is host memory.
// Kernels do nothing, unless they are to compute; copies and tests' work are done at once, or as
// late as possible. Each stream has its own queue: work waits only for earlier work of its stream,
// and for events. What CUDA forbids while a stream is captured fails with CUDA's errors.
//
// Source: CUDA Runtime API 13.0, "Stream Management", "Graph Management", "Memory Management".

#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API extern "C" __attribute__((visibility("default")))

namespace stand_in {

// From cudaError_t.
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kNotReady = 600;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureIsolation = 905;
constexpr int kCaptureImplicit = 906;

// From cudaGraphNodeType.
enum NodeType { kKernelNode, kCopyNode, kFillNode, kHostNode };
// The values of cudaMemcpyKind.
constexpr const char* kDirections[] = {"host", "in", "out", "device", "default"};

struct Extent {
  unsigned x, y, z;
};

using Computation = std::function<void()>;

// Makes the computation of a launch, or null for an unknown kernel. Not thread-safe.
using MakeComputation = Computation (*)(const std::string& mangled, void** parameters, Extent grid,
                                        Extent block);

struct Node {
  std::string name;
  std::function<void()> run;
  NodeType type;
  int64_t kind;  // cudaMemcpyKind of a copy
};

struct Graph {
  std::vector<Node> nodes;
};

struct Stream {
  std::string name;
  bool is_blocking = false;  // whether it waits for the default stream, which waits for it
  std::deque<std::function<void()>> late{};
  size_t num_added = 0, num_done = 0;  // pieces of work
  Graph* captured = nullptr;
  bool is_broken = false;  // whether the capture has failed
};

struct Event {
  Stream* stream = nullptr;
  size_t count = 0;         // pieces of work before it on the stream
  int64_t nanoseconds = 0;  // when the device has done the work before it
  bool is_captured = false;
};

// Hold it to read or change the variables below, or those of a file. A thread may hold it several
// times, since functions of tests call back.
struct Lock {
  Lock();
  ~Lock();
};

extern int64_t num_alive;  // objects and allocations that are not yet destroyed
extern Stream default_stream;
extern constinit thread_local Stream* capturing;  // by this thread
extern constinit thread_local int last_error;

// Whether kernels compute: STAND_IN_COMPUTES is set in the environment.
bool IsComputing();

void Log(const std::string& name, const std::string& about = "");
int Fail(int error);

// Logs a call. Returns the error that StandInFail() set for it, or 0.
int Called(const std::string& name, const std::string& about = "");

// Logs a call that CUDA forbids while this thread captures; it fails then.
int CalledOutside(const std::string& name, const std::string& about = "");

Stream* StreamOf(void* handle);

// Does the first `count` pieces of work of a stream, all of them, or those of all streams.
void Finish(Stream* stream, size_t count);
void Finish(Stream* stream);
void FinishAll();

// When the device has done all work on streams, if kernels and copies take time: each takes
// STAND_IN_NANOSECONDS of the environment. Calls are then not logged.
int64_t BusyUntil();
void WaitUntil(int64_t nanoseconds);
bool TakesTime();

// Whether work on a stream is not yet done.
bool IsBusy(const Stream* stream);

// Creates a stream, or destroys one after its work.
Stream* AddStream(bool is_blocking);
void RemoveStream(Stream* stream);

// Puts work on a stream. `count`: number of kernels and copies in it.
int Work(void* stream, const Node& node, size_t count = 1);

inline std::string Number(long number) {
  char text[32];
  snprintf(text, sizeof(text), "%ld", number);
  return text;
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

}  // namespace stand_in
