#include "state.h"

using namespace stand_in;

namespace {

void Run(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (node.type != kHostNode) node.run();
  }
}

}  // namespace

// Streams.

API int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  if (int error = Called("cudaStreamCreateWithFlags")) return error;
  ++num_alive;
  *stream = AddStream(flags == 0);
  return 0;
}
API int cudaStreamCreate(void** stream) { return cudaStreamCreateWithFlags(stream, 0); }
API int cudaStreamDestroy(void* stream) {
  RemoveStream(static_cast<Stream*>(stream));
  return Destroy<Stream>("cudaStreamDestroy", stream);
}

API int cudaStreamSynchronize(void* handle) {
  Stream* stream = StreamOf(handle);
  if (int error = Called("cudaStreamSynchronize", stream->name)) return error;
  if (stream->captured != nullptr) {
    Log("violation", "cudaStreamSynchronize");
    stream->is_broken = true;
    return Fail(kCaptureUnsupported);
  }
  WaitUntil(BusyUntil());
  Lock lock;
  Finish(stream);
  return 0;
}

// Work that is not yet done makes the stream busy.
API int cudaStreamQuery(void* handle) {
  if (int error = CalledOutside("cudaStreamQuery", StreamOf(handle)->name)) return error;
  return IsBusy(StreamOf(handle)) ? Fail(kNotReady) : 0;
}

API int cudaStreamWaitEvent(void* handle, void* event, unsigned) {
  if (int error = Called("cudaStreamWaitEvent")) return error;
  Stream* stream = StreamOf(handle);
  const auto* waited = static_cast<Event*>(event);
  if ((stream->captured != nullptr) == waited->is_captured) {
    if (waited->is_captured || waited->stream == nullptr) return 0;
    const auto wait = [other = waited->stream, count = waited->count] { Finish(other, count); };
    return Work(handle, {"wait", wait, kKernelNode, 0}, 0);
  }
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

// As in CUDA, it ends the capture even if it fails.
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
  const auto* launched = static_cast<Graph*>(executable);
  const size_t size = launched->nodes.size();
  if (int error = Called("cudaGraphLaunch", Number(size))) return error;
  if (TakesTime()) {  // no copy: it may be destroyed only after the work
    return Work(stream, {"graph", [=] { Run(*launched); }, kKernelNode, 0}, size);
  }
  return Work(stream, {"graph", [graph = *launched] { Run(graph); }, kKernelNode, 0});
}

// Events.

API int cudaEventCreateWithFlags(void** event, unsigned) {
  return Make("cudaEventCreateWithFlags", event, new Event);
}
API int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
API int cudaEventDestroy(void* event) { return Destroy<Event>("cudaEventDestroy", event); }

API int cudaEventRecord(void* event, void* stream) {
  auto* recorded = static_cast<Event*>(event);
  recorded->stream = StreamOf(stream);
  recorded->count = recorded->stream->num_added;
  recorded->nanoseconds = BusyUntil();
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
  WaitUntil(waited->nanoseconds);
  Lock lock;
  if (waited->stream != nullptr) Finish(waited->stream, waited->count);
  return 0;
}

API int cudaEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return 0;
}
