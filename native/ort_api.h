// The part of ONNX Runtime's C API that custom operators need: opaque types, the layout of
// OrtCustomOp, and calls through the function table OrtApi.
//
// The API only grows: from the version that adds it, a function keeps its index in the table and a
// field its offset. So indices suffice, and the build needs no ONNX Runtime headers. Source of
// names and indices: onnxruntime_c_api.h, API version 18.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace ort {

constexpr uint32_t kVersion = 18;

struct Status;
struct Session;
struct Value;
struct Shape;
struct Domain;
struct KernelInfo;
struct KernelContext;

using Table = const void* const*;

struct ApiBase {
  Table (*get_api)(uint32_t version);
  const char* (*get_version)();
};

// Indices into the function table.
enum ApiIndex {
  kCreateStatus = 0,
  kCreateDomain = 26,
  kDomainAdd = 27,
  kAddDomain = 28,
  kData = 51,
  kNumDimensions = 61,
  kDimensions = 62,
  kShape = 65,
  kAttributeFloat = 85,
  kAttributeInt = 86,
  kInput = 90,
  kOutput = 91,
  kReleaseShape = 99,
  kGpuStream = 193,
  kParallelFor = 274,
};

// ONNXTensorElementDataType.
enum ElementType {
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt32 = 6,
  kInt64 = 7,
  kFloat16 = 10,
  kBFloat16 = 16
};

// OrtCustomOp: callbacks for ONNX Runtime, which does not call those that are null.
struct Operator {
  uint32_t version;
  void* (*create)(const Operator*, Table, const KernelInfo*);
  const char* (*name)(const Operator*);
  const char* (*provider)(const Operator*);
  ElementType (*input_type)(const Operator*, size_t);
  size_t (*num_inputs)(const Operator*);
  ElementType (*output_type)(const Operator*, size_t);
  size_t (*num_outputs)(const Operator*);
  void (*compute)(void* kernel, KernelContext*);
  void (*destroy)(void* kernel);
  int (*input_characteristic)(const Operator*, size_t);
  int (*output_characteristic)(const Operator*, size_t);
  int (*input_memory)(const Operator*, size_t);
  int (*variadic_input_min)(const Operator*);
  int (*variadic_input_same)(const Operator*);
  int (*variadic_output_min)(const Operator*);
  int (*variadic_output_same)(const Operator*);
  Status* (*create_checked)(const Operator*, Table, const KernelInfo*, void** kernel);
  Status* (*compute_checked)(void* kernel, KernelContext*);
  Status* (*infer_shape)(const Operator*, void*);
  int (*start_version)(const Operator*);
  int (*end_version)(const Operator*);
  size_t (*may_in_place)(int**, int**);
  void (*release_may_in_place)(int*, int*);
  size_t (*aliases)(int**, int**);
  void (*release_aliases)(int*, int*);
};

// The functions of OrtApi that operators use, under their names in OrtApi.
class Api {
 public:
  explicit Api(Table table) : table_(table) {}

  Status* CreateStatus(int code, const char* message) const {
    return at<Status* (*)(int, const char*)>(kCreateStatus)(code, message);
  }
  Status* CreateDomain(const char* name, Domain** out) const {
    return at<Status* (*)(const char*, Domain**)>(kCreateDomain)(name, out);
  }
  Status* Add(Domain* domain, const Operator* op) const {
    return at<Status* (*)(Domain*, const Operator*)>(kDomainAdd)(domain, op);
  }
  Status* Add(Session* options, Domain* domain) const {
    return at<Status* (*)(Session*, Domain*)>(kAddDomain)(options, domain);
  }
  Status* Attribute(const KernelInfo* info, const char* name, float* out) const {
    return at<Status* (*)(const KernelInfo*, const char*, float*)>(kAttributeFloat)(info, name,
                                                                                    out);
  }
  Status* Attribute(const KernelInfo* info, const char* name, int64_t* out) const {
    return at<Status* (*)(const KernelInfo*, const char*, int64_t*)>(kAttributeInt)(info, name,
                                                                                    out);
  }
  // Null if the node omits the input.
  Status* Input(const KernelContext* context, size_t index, const Value** out) const {
    return at<Status* (*)(const KernelContext*, size_t, const Value**)>(kInput)(context, index,
                                                                                out);
  }
  // Null if the node omits the output.
  Status* Output(KernelContext* context, size_t index, const int64_t* shape, size_t rank,
                 Value** out) const {
    return at<Status* (*)(KernelContext*, size_t, const int64_t*, size_t, Value**)>(kOutput)(
        context, index, shape, rank, out);
  }
  Status* Data(const Value* value, void** out) const {
    return at<Status* (*)(const Value*, void**)>(kData)(value, out);
  }
  Status* ShapeOf(const Value* value, Shape** out) const {
    return at<Status* (*)(const Value*, Shape**)>(kShape)(value, out);
  }
  Status* Rank(const Shape* shape, size_t* out) const {
    return at<Status* (*)(const Shape*, size_t*)>(kNumDimensions)(shape, out);
  }
  Status* Dimensions(const Shape* shape, int64_t* out, size_t rank) const {
    return at<Status* (*)(const Shape*, int64_t*, size_t)>(kDimensions)(shape, out, rank);
  }
  void Release(Shape* shape) const { at<void (*)(Shape*)>(kReleaseShape)(shape); }
  // The CUDA stream on which a kernel must run.
  Status* GpuStream(const KernelContext* context, void** out) const {
    return at<Status* (*)(const KernelContext*, void**)>(kGpuStream)(context, out);
  }
  // Runs task(data, i) for each i below `total` on the session's intra-op threads. The fourth
  // argument, 0, lets ONNX Runtime choose how many tasks a thread takes at a time.
  Status* ParallelFor(const KernelContext* context, void (*task)(void*, size_t), size_t total,
                      void* data) const {
    return at<Status* (*)(const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>(
        kParallelFor)(context, task, total, 0, data);
  }

 private:
  template <typename F>
  F at(ApiIndex index) const {
    return reinterpret_cast<F>(const_cast<void*>(table_[index]));
  }

  Table table_;
};

}  // namespace ort
