// Stands for the CUDA runtime in tests: streams that work at once, late or are captured, graphs,
// events and copies in host memory. It logs its calls, and fails where it is told to.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace {

using Callback = void (*)();

// Of cudaGraphNodeType; and of a copy, its cudaMemcpyKind.
constexpr int kCopyNode = 1;
constexpr int kHostNode = 3;

struct Node {
  Callback work;
  int type;
  int64_t kind;
};

struct Graph {
  Node nodes[4];
  size_t count;
};

struct Stream {
  Graph* captured;
};

// What a stream does late: a graph's work, or a copy.
struct Late {
  Graph graph;
  void* target;
  const void* source;
  size_t count;
};

constexpr size_t kMaxLate = 64;
Late late[kMaxLate];
size_t num_late;  // of which the first num_done are done
size_t num_done;
bool is_late;

char failing[64];  // the function that fails, and its error
int failure;
char calls[1 << 16];
int num_alive;  // objects and allocations that are not destroyed

int Called(const char* function) {
  strcat(strcat(calls, function), " ");
  return strcmp(function, failing) == 0 ? failure : 0;
}

int Make(const char* function, void** made, size_t size) {
  if (int error = Called(function)) return error;
  ++num_alive;
  *made = calloc(1, size);
  return 0;
}

int Destroy(const char* function, void* object) {
  free(object);
  --num_alive;
  return Called(function);
}

void Run(const Graph& graph) {
  for (size_t i = 0; i < graph.count; ++i) {
    const Node& node = graph.nodes[i];
    if (node.type != kCopyNode && node.type != kHostNode) node.work();
  }
}

// Does what was put on streams before the first `count`.
void Finish(size_t count) {
  while (num_done < count) {
    const Late& next = late[num_done++ % kMaxLate];
    Run(next.graph);
    if (next.target != nullptr) memcpy(next.target, next.source, next.count);
  }
}

void Add(const Late& added) {
  late[num_late++ % kMaxLate] = added;
  if (!is_late || num_late - num_done == kMaxLate) Finish(num_late);
}

}  // namespace

extern "C" {

// Whether streams work as late as possible: when an event after it is waited for.
void FakeBeLate(int late_or_not) {
  is_late = late_or_not != 0;
  if (!is_late) Finish(num_late);
}

void FakeFail(const char* function, int error) {
  strcpy(failing, function);
  failure = error;
}

void FakeReset() { failing[0] = calls[0] = 0; }

const char* FakeCalls() { return calls; }

int FakeNumAlive() { return num_alive; }

// Puts work on a stream.
void FakeWork(void* stream, Callback work, int type, int64_t kind) {
  auto* captured = static_cast<Stream*>(stream)->captured;
  if (captured == nullptr) {
    work();
  } else {
    captured->nodes[captured->count++] = {work, type, kind};
  }
}

int cudaGetLastError() { return Called("cudaGetLastError"); }

int cudaSetDevice(int) { return Called("cudaSetDevice"); }

int cudaStreamCreateWithFlags(void** stream, unsigned) {
  return Make("cudaStreamCreateWithFlags", stream, sizeof(Stream));
}

int cudaStreamDestroy(void* stream) { return Destroy("cudaStreamDestroy", stream); }

int cudaStreamSynchronize(void*) {
  Finish(num_late);
  return Called("cudaStreamSynchronize");
}

int cudaStreamBeginCapture(void* stream, int) {
  int error = Called("cudaStreamBeginCapture");
  if (error == 0) static_cast<Stream*>(stream)->captured = static_cast<Graph*>(calloc(1, sizeof(Graph)));
  return error;
}

// As CUDA's, it ends the capture even if it fails.
int cudaStreamEndCapture(void* stream, void** graph) {
  Graph* captured = static_cast<Stream*>(stream)->captured;
  static_cast<Stream*>(stream)->captured = nullptr;
  if (int error = Called("cudaStreamEndCapture")) {
    free(captured);
    return error;
  }
  ++num_alive;
  *graph = captured;
  return 0;
}

int cudaGraphGetNodes(void* graph, void** nodes, size_t* count) {
  auto* all = static_cast<Graph*>(graph);
  for (size_t i = 0; nodes != nullptr && i < *count; ++i) nodes[i] = &all->nodes[i];
  *count = all->count;
  return Called("cudaGraphGetNodes");
}

int cudaGraphNodeGetType(void* node, int* type) {
  *type = static_cast<Node*>(node)->type;
  return Called("cudaGraphNodeGetType");
}

int cudaGraphMemcpyNodeGetParams(void* node, void* parameters) {
  int kind = static_cast<int>(static_cast<Node*>(node)->kind);
  memset(parameters, 0xff, 160);
  memcpy(static_cast<char*>(parameters) + 152, &kind, sizeof(kind));
  return Called("cudaGraphMemcpyNodeGetParams");
}

int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  int error = Make("cudaGraphInstantiate", executable, sizeof(Graph));
  if (error == 0) memcpy(*executable, graph, sizeof(Graph));
  return error;
}

int cudaGraphDestroy(void* graph) { return Destroy("cudaGraphDestroy", graph); }

int cudaGraphExecDestroy(void* graph) { return Destroy("cudaGraphExecDestroy", graph); }

int cudaGraphLaunch(void* executable, void*) {
  Add({*static_cast<Graph*>(executable), nullptr, nullptr, 0});
  return Called("cudaGraphLaunch");
}

int cudaMemcpyAsync(void* target, const void* source, size_t count, int kind, void*) {
  Add({{}, target, source, count});
  return Called(kind == 1 ? "cudaMemcpyAsync:in" : "cudaMemcpyAsync:out");
}

int cudaEventCreateWithFlags(void** event, unsigned) {
  return Make("cudaEventCreateWithFlags", event, sizeof(size_t));
}

int cudaEventDestroy(void* event) { return Destroy("cudaEventDestroy", event); }

int cudaEventRecord(void* event, void*) {
  *static_cast<size_t*>(event) = num_late;
  return Called("cudaEventRecord");
}

int cudaEventSynchronize(void* event) {
  Finish(*static_cast<size_t*>(event));
  return Called("cudaEventSynchronize");
}

int cudaHostAlloc(void** pointer, size_t size, unsigned) {
  return Make("cudaHostAlloc", pointer, size);
}

int cudaFreeHost(void* pointer) { return Destroy("cudaFreeHost", pointer); }

}  // extern "C"
