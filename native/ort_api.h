// The part of ONNX Runtime's C interface that an operator of one's own needs.
//
// The interface only grows: a function keeps its place in the table, and a structure its first
// fields, from the version in which it appeared on. So the places are enough, and no header of
// ONNX Runtime is needed to build. Source of names and places: onnxruntime_c_api.h, version 18.
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

enum Place {
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
  kParallelFor = 274,
};

enum ElementType { kFloat = 1, kInt8 = 3, kUInt16 = 4, kInt32 = 6 };

// What the runtime asks an operator; a field that is null is never asked.
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

// The functions, by their names there.
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
  // Null where the node has no such input.
  Status* Input(const KernelContext* context, size_t index, const Value** out) const {
    return at<Status* (*)(const KernelContext*, size_t, const Value**)>(kInput)(context, index,
                                                                                out);
  }
  // Null where the node has no such output.
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
  // Runs task(data, i) for every i below total on the session's threads; 0: it decides how many.
  Status* ParallelFor(const KernelContext* context, void (*task)(void*, size_t), size_t total,
                      void* data) const {
    return at<Status* (*)(const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>(
        kParallelFor)(context, task, total, 0, data);
  }

 private:
  template <typename F>
  F at(Place place) const {
    return reinterpret_cast<F>(const_cast<void*>(table_[place]));
  }

  Table table_;
};

}  // namespace ort
