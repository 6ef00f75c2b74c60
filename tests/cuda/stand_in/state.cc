#include "state.h"

#include <algorithm>
#include <deque>

#include <pthread.h>
#include <time.h>

namespace stand_in {

Stream default_stream{"default", true};

namespace {

pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
std::string calls;
std::string failing;  // the call that fails with the error `failure`
int failure;
bool is_late = getenv("STAND_IN_LATE") != nullptr;
const bool is_computing = getenv("STAND_IN_COMPUTES") != nullptr;
std::vector<Stream*> streams{&default_stream};
int num_streams;
const int64_t node_nanoseconds = [] {
  const char* given = getenv("STAND_IN_NANOSECONDS");
  return given == nullptr ? 0L : atol(given);
}();
int64_t busy_until;

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000L + now.tv_nsec;
}

}  // namespace

int64_t num_alive;
constinit thread_local Stream* capturing = nullptr;
constinit thread_local int last_error = 0;

Lock::Lock() { pthread_mutex_lock(&mutex); }
Lock::~Lock() { pthread_mutex_unlock(&mutex); }

bool TakesTime() { return node_nanoseconds > 0; }

int64_t BusyUntil() {
  Lock lock;
  return busy_until;
}

bool IsBusy(const Stream* stream) {
  Lock lock;
  return stream->num_done < stream->num_added || busy_until > Now();
}

Stream* AddStream(bool is_blocking) {
  Lock lock;
  streams.push_back(new Stream{"stream " + Number(++num_streams), is_blocking});
  return streams.back();
}

void RemoveStream(Stream* stream) {
  Lock lock;
  Finish(stream);
  streams.erase(std::find(streams.begin(), streams.end(), stream));
}

void WaitUntil(int64_t nanoseconds) {
  if (nanoseconds <= Now()) return;
  const timespec until = {nanoseconds / 1'000'000'000L, nanoseconds % 1'000'000'000L};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
}

void Log(const std::string& name, const std::string& about) {
  if (TakesTime()) return;
  Lock lock;
  calls += name;
  if (!about.empty()) calls += '\t' + about;
  calls += '\n';
}

int Fail(int error) { return last_error = error; }

bool IsComputing() { return is_computing; }

int Called(const std::string& name, const std::string& about) {
  Log(name, about);
  return name == failing ? Fail(failure) : 0;
}

int CalledOutside(const std::string& name, const std::string& about) {
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

void Finish(Stream* stream, size_t count) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) return;  // destroyed
  while (stream->num_done < count) {
    const auto next = std::move(stream->late.front());
    stream->late.pop_front();
    ++stream->num_done;
    next();
  }
}

void Finish(Stream* stream) { Finish(stream, stream->num_added); }

void FinishAll() {
  Lock lock;
  for (Stream* stream : streams) Finish(stream);
}

int Work(void* handle, const Node& node, size_t count) {
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
  if (TakesTime()) busy_until = std::max(busy_until, Now()) + int64_t(count) * node_nanoseconds;
  if (stream->is_blocking) {  // it begins after the earlier work of other blocking streams
    for (Stream* other : streams) {
      if (other == stream || !other->is_blocking) continue;
      if (stream != &default_stream && other != &default_stream) continue;
      stream->late.push_back([other, count = other->num_added] { Finish(other, count); });
      ++stream->num_added;
    }
  }
  stream->late.push_back(node.run);
  ++stream->num_added;
  if (!is_late) Finish(stream);
  return 0;
}

}  // namespace stand_in

using namespace stand_in;

// The interface for tests.

API const char* StandInCalls() { return calls.c_str(); }
API int64_t StandInNumAlive() { return num_alive; }

API void StandInReset() {
  Lock lock;
  failing.clear();
  calls.clear();
}

API void StandInFail(const char* name, int error) {
  failing = name;
  failure = error;
}

// Sets whether work is done as late as possible: when someone waits for an event after it.
API void StandInBeLate(int late_or_not) {
  Lock lock;
  is_late = late_or_not != 0;
  if (!is_late) FinishAll();
}

API int StandInWork(void* stream, void (*run)(), int type, int64_t kind) {
  return Work(stream, {"work", run, static_cast<NodeType>(type), kind});
}

// A launch by another library. Computes run(copy of the parameters), unless `run` is null; it
// returns null or an error message.
API int StandInLaunch(void* stream, const char* name, const char* (*run)(const void*),
                      const void* parameters, size_t size) {
  if (int error = Called("kernel", name)) return error;
  std::function<void()> computation = [] {};
  if (is_computing && run != nullptr) {
    computation = [run, copy = std::string(static_cast<const char*>(parameters), size)] {
      if (const char* failure = run(copy.data())) Log("failure", failure);
    };
  } else if (is_computing) {
    Log("does nothing", name);
  }
  return Work(stream, {name, computation, kKernelNode, 0});
}
