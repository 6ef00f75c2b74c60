// Stands in for cuDNN in tests; logs calls as kernels. Reductions and, in another file, recurrent
// layers compute; softmax does nothing. Source: cuDNN 9, "cudnn_ops Library".

#include <math.h>

#include "cudnn.h"

using namespace stand_in;

namespace {

// From cudnnReduceTensorOp_t.
enum Reduction { kAdd, kMultiply, kMin, kMax, kMaxOfAbsolute, kMean, kNorm1, kNorm2 };

struct Reduced {
  int reduction;
  Tensor from_shape, to_shape;
  const void* from;
  void* to;
};

double Combine(int reduction, double so_far, double x) {
  switch (reduction) {
    case kMultiply: return so_far * x;
    case kMin: return x < so_far ? x : so_far;
    case kMax: return x > so_far ? x : so_far;
    case kMaxOfAbsolute: return fabs(x) > so_far ? fabs(x) : so_far;
    case kNorm1: return so_far + fabs(x);
    case kNorm2: return so_far + x * x;
    default: return so_far + x;
  }
}

double Begin(int reduction) {
  if (reduction == kMultiply) return 1;
  return reduction == kMin ? HUGE_VAL : reduction == kMax ? -HUGE_VAL : 0;
}

int64_t CountOf(const Tensor& shape) {
  int64_t count = 1;
  for (int i = 0; i < shape.rank; ++i) count *= shape.sizes[i];
  return count;
}

// The position in `tensor`, which broadcasts dimensions of size 1, of the element `index` of
// `shape`.
int64_t PlaceOf(int64_t index, const Tensor& shape, const Tensor& tensor) {
  int64_t place = 0;
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (tensor.sizes[i] > 1) place += index % shape.sizes[i] * tensor.strides[i];
    index /= shape.sizes[i];
  }
  return place;
}

template <typename T>
void Reduce(const Reduced& r) {
  const T* from = static_cast<const T*>(r.from);
  T* to = static_cast<T*>(r.to);
  const int64_t count = CountOf(r.from_shape), num_results = CountOf(r.to_shape);
  auto* results = static_cast<double*>(malloc(sizeof(double) * static_cast<size_t>(num_results)));
  for (int64_t i = 0; i < num_results; ++i) results[i] = Begin(r.reduction);
  Tensor packed = r.to_shape;
  for (int i = packed.rank - 1, stride = 1; i >= 0; stride *= packed.sizes[i--]) {
    packed.strides[i] = stride;
  }
  for (int64_t i = 0; i < count; ++i) {
    double& result = results[PlaceOf(i, r.from_shape, packed)];
    const T x = from[PlaceOf(i, r.from_shape, r.from_shape)];
    result = Combine(r.reduction, result, static_cast<double>(static_cast<ComputedType<T>>(x)));
  }
  for (int64_t i = 0; i < num_results; ++i) {
    double result = results[i];
    if (r.reduction == kMean) result /= static_cast<double>(count / num_results);
    if (r.reduction == kNorm2) result = sqrt(result);
    to[PlaceOf(i, r.to_shape, r.to_shape)] = static_cast<T>(static_cast<ComputedType<T>>(result));
  }
  free(results);
}

const char* Run(const void* parameters) {
  const auto& reduced = *static_cast<const Reduced*>(parameters);
  VisitType(reduced.from_shape.type,
            [&](auto tag) { Reduce<typename decltype(tag)::Type>(reduced); });
  return nullptr;
}

}  // namespace

API int cudnnSetStream(void** handle, void* stream) {
  *handle = stream;
  return 0;
}

API size_t cudnnGetVersion() { return 91300; }
API size_t cudnnGetCudartVersion() { return 13000; }
API const char* cudnnGetErrorString(int) { return "status"; }
API void cudnnGetLastErrorString(char* text, size_t size) {
  if (size) *text = 0;
}

API int cudnnGetReductionWorkspaceSize(void*, void*, void*, void*, size_t* size) {
  *size = 1024;
  return 0;
}

API int cudnnDropoutGetStatesSize(void*, size_t* size) {
  *size = 64;
  return 0;
}

API int cudnnGetReductionIndicesSize(void*, void*, void*, void*, size_t* size) {
  *size = 0;
  return 0;
}

API int cudnnSetTensorNdDescriptor(Tensor* tensor, int type, int rank, const int* sizes,
                                   const int* strides) {
  if (rank > kMaxRank) return 1;
  tensor->type = type;
  tensor->rank = rank;
  for (int i = 0; i < rank; ++i) {
    tensor->sizes[i] = sizes[i];
    tensor->strides[i] = strides[i];
  }
  return 0;
}

API int cudnnGetTensorNdDescriptor(const Tensor* tensor, int most_dimensions, int* type, int* rank,
                                   int* sizes, int* strides) {
  *type = tensor->type;
  *rank = tensor->rank;
  for (int i = 0; i < tensor->rank && i < most_dimensions; ++i) {
    sizes[i] = tensor->sizes[i];
    strides[i] = tensor->strides[i];
  }
  return 0;
}

API int cudnnSetReduceTensorDescriptor(int* descriptor, int reduction, int, int, int, int) {
  *descriptor = reduction;
  return 0;
}

API int cudnnReduceTensor(void** handle, const int* reduction, void*, size_t, void*, size_t,
                          const void*, const Tensor* from_shape, const void* from, const void*,
                          const Tensor* to_shape, void* to) {
  const Reduced reduced = {*reduction, *from_shape, *to_shape, from, to};
  return StandInLaunch(*handle, "cudnnReduceTensor", Run, &reduced, sizeof(reduced));
}

CREATE(cudnnCreate)
CREATE(cudnnCreateActivationDescriptor)
CREATE(cudnnCreateConvolutionDescriptor)
CREATE(cudnnCreateDropoutDescriptor)
CREATE(cudnnCreateFilterDescriptor)
CREATE(cudnnCreateLRNDescriptor)
CREATE(cudnnCreatePoolingDescriptor)
CREATE(cudnnCreateReduceTensorDescriptor)
CREATE(cudnnCreateTensorDescriptor)

LAUNCH(cudnnConvolutionForward)
LAUNCH(cudnnConvolutionBiasActivationForward)
LAUNCH(cudnnBackendExecute)
LAUNCH(cudnnAddTensor)
LAUNCH(cudnnActivationForward)
LAUNCH(cudnnBatchNormalizationForwardInference)
LAUNCH(cudnnPoolingForward)
LAUNCH(cudnnLRNCrossChannelForward)
LAUNCH(cudnnSoftmaxForward)

NOTHING(cudnnBackendCreateDescriptor)
NOTHING(cudnnBackendDestroyDescriptor)
NOTHING(cudnnBackendFinalize)
NOTHING(cudnnBackendGetAttribute)
NOTHING(cudnnBackendSetAttribute)
NOTHING(cudnnBatchNormalizationForwardTraining)
NOTHING(cudnnDeriveBNTensorDescriptor)
NOTHING(cudnnDestroy)
NOTHING(cudnnDestroyActivationDescriptor)
NOTHING(cudnnDestroyConvolutionDescriptor)
NOTHING(cudnnDestroyDropoutDescriptor)
NOTHING(cudnnDestroyFilterDescriptor)
NOTHING(cudnnDestroyLRNDescriptor)
NOTHING(cudnnDestroyPoolingDescriptor)
NOTHING(cudnnDestroyReduceTensorDescriptor)
NOTHING(cudnnDestroyTensorDescriptor)
NOTHING(cudnnFindConvolutionForwardAlgorithmEx)
NOTHING(cudnnGetConvolutionForwardAlgorithm_v7)
NOTHING(cudnnGetConvolutionForwardWorkspaceSize)
NOTHING(cudnnGetStream)
NOTHING(cudnnSetActivationDescriptor)
NOTHING(cudnnSetConvolutionGroupCount)
NOTHING(cudnnSetConvolutionMathType)
NOTHING(cudnnSetConvolutionNdDescriptor)
NOTHING(cudnnSetDropoutDescriptor)
NOTHING(cudnnSetFilterNdDescriptor)
NOTHING(cudnnSetLRNDescriptor)
NOTHING(cudnnSetPoolingNdDescriptor)
