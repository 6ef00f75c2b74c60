// Stands for cuDNN in tests: its products are logged as kernels, and do nothing.

#include "library.h"

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

API int cudnnGetRNNTempSpaceSizes(void*, void*, int, void*, size_t* work, size_t* reserved) {
  *work = *reserved = 1024;
  return 0;
}

// All weights are in the first place, and have one element.
API int cudnnGetRNNWeightParams(void*, void*, int, size_t, void* weights, int, void*,
                                void** matrix, void*, void** bias) {
  *matrix = *bias = weights;
  return 0;
}

API int cudnnGetTensorNdDescriptor(void*, int, int* type, int* rank, int* sizes, int* strides) {
  *type = 0;
  *rank = 3;
  for (int i = 0; i < *rank; ++i) sizes[i] = strides[i] = 1;
  return 0;
}

API int cudnnGetReductionIndicesSize(void*, void*, void*, void*, size_t* size) {
  *size = 0;
  return 0;
}

CREATE(cudnnCreate)
CREATE(cudnnCreateActivationDescriptor)
CREATE(cudnnCreateConvolutionDescriptor)
CREATE(cudnnCreateDropoutDescriptor)
CREATE(cudnnCreateFilterDescriptor)
CREATE(cudnnCreateLRNDescriptor)
CREATE(cudnnCreatePoolingDescriptor)
CREATE(cudnnCreateRNNDataDescriptor)
CREATE(cudnnCreateRNNDescriptor)
CREATE(cudnnCreateReduceTensorDescriptor)
CREATE(cudnnCreateTensorDescriptor)

LAUNCH(cudnnRNNForward)
LAUNCH(cudnnReduceTensor)
LAUNCH(cudnnSoftmaxForward)

NOTHING(cudnnActivationForward)
NOTHING(cudnnAddTensor)
NOTHING(cudnnBackendCreateDescriptor)
NOTHING(cudnnBackendDestroyDescriptor)
NOTHING(cudnnBackendExecute)
NOTHING(cudnnBackendFinalize)
NOTHING(cudnnBackendGetAttribute)
NOTHING(cudnnBackendSetAttribute)
NOTHING(cudnnBatchNormalizationForwardInference)
NOTHING(cudnnBatchNormalizationForwardTraining)
NOTHING(cudnnConvolutionBiasActivationForward)
NOTHING(cudnnConvolutionForward)
NOTHING(cudnnDeriveBNTensorDescriptor)
NOTHING(cudnnDestroy)
NOTHING(cudnnDestroyActivationDescriptor)
NOTHING(cudnnDestroyConvolutionDescriptor)
NOTHING(cudnnDestroyDropoutDescriptor)
NOTHING(cudnnDestroyFilterDescriptor)
NOTHING(cudnnDestroyLRNDescriptor)
NOTHING(cudnnDestroyPoolingDescriptor)
NOTHING(cudnnDestroyRNNDataDescriptor)
NOTHING(cudnnDestroyRNNDescriptor)
NOTHING(cudnnDestroyReduceTensorDescriptor)
NOTHING(cudnnDestroyTensorDescriptor)
NOTHING(cudnnFindConvolutionForwardAlgorithmEx)
NOTHING(cudnnGetConvolutionForwardAlgorithm_v7)
NOTHING(cudnnGetConvolutionForwardWorkspaceSize)
NOTHING(cudnnGetStream)
NOTHING(cudnnLRNCrossChannelForward)
NOTHING(cudnnPoolingForward)
NOTHING(cudnnSetActivationDescriptor)
NOTHING(cudnnSetConvolutionGroupCount)
NOTHING(cudnnSetConvolutionMathType)
NOTHING(cudnnSetConvolutionNdDescriptor)
NOTHING(cudnnSetDropoutDescriptor)
NOTHING(cudnnSetFilterNdDescriptor)
NOTHING(cudnnSetLRNDescriptor)
NOTHING(cudnnSetPoolingNdDescriptor)
NOTHING(cudnnSetRNNDataDescriptor)
NOTHING(cudnnSetRNNDescriptor_v8)
NOTHING(cudnnSetReduceTensorDescriptor)
NOTHING(cudnnSetTensorNdDescriptor)
