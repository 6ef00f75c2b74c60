// Stands for the CUDA runtime in tests, on machines without a GPU. A device's memory is memory of
// the host. Kernels do nothing; copies, and the work of tests, are done: at once, or as late as
// possible. What CUDA does not allow while a stream is captured fails as it does there.
//
// Source: CUDA Runtime API 13.0, "Stream Management", "Graph Management", "Memory Management".

#pragma once

#include <functional>
#include <string>
#include <vector>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API extern "C" __attribute__((visibility("default")))

namespace stand_in {

// Of cudaError_t.
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidDevice = 101;
constexpr int kNotReady = 600;
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

using Computation = std::function<void()>;

// Of a launch; null of a kernel that is not known. For one thread at a time.
using MakeComputation = Computation (*)(const std::string& mangled, void** parameters, Extent grid,
                                        Extent block);

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
  size_t count = 0;        // of late work before it
  int64_t nanoseconds = 0;  // when the device is done with what is before it
  bool is_captured = false;
};

// Held while what follows, or state of a file, is read or changed. A thread may hold it several
// times: a test's function calls back.
struct Lock {
  Lock();
  ~Lock();
};

extern int64_t num_alive;  // objects and allocations that are not destroyed
extern size_t num_added;   // pieces of work that were put on streams
extern Stream default_stream;
extern constinit thread_local Stream* capturing;  // of this thread
extern constinit thread_local int last_error;

// Whether kernels compute: if the environment has STAND_IN_COMPUTES.
bool IsComputing();

void Log(const std::string& name, const std::string& about = "");
int Fail(int error);

// Logs a call. Returns its error if it is to fail.
int Called(const std::string& name, const std::string& about = "");

// Logs a call that may not be made while this thread captures.
int CalledOutside(const std::string& name, const std::string& about = "");

Stream* StreamOf(void* handle);

// Does what was put on streams before the first `count`.
void Finish(size_t count);

// When the device is done with what is on streams, if a kernel or a copy takes time: as many
// nanoseconds as the environment's STAND_IN_NANOSECONDS says. There is no log of calls then.
int64_t BusyUntil();
void WaitUntil(int64_t nanoseconds);
bool TakesTime();

// Whether work on streams is not done.
bool IsBusy();

// Puts work on a stream, of so many kernels and copies.
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
