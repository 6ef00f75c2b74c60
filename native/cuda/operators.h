// Shared by the CUDA operators: errors, shapes of inputs, and the element type.
#pragma once

#include "device/arguments.h"
#include "driver.h"

#ifndef PROVIDER  // the emulator's build defines another
#define PROVIDER "CUDAExecutionProvider"
#endif

namespace cuda {

using ort::Api;
using ort::Dimensions;
using ort::KernelContext;
using ort::KernelInfo;
using ort::Parameter;
using ort::Status;
using ort::Value;

constexpr const char* kProviderName = PROVIDER;
constexpr int kVector = 8, kWarp = 32, kMaxThreads = 1024;
using Element = uint16_t;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline Status* refuse(const Api& api, const char* reason) {
  return api.CreateStatus(ort::kInvalidArgument, reason);
}

inline bool are_equal(const Dimensions& a, const Dimensions& b) {
  if (a.rank != b.rank) return false;
  for (size_t axis = 0; axis < a.rank; axis++) {
    if (a.sizes[axis] != b.sizes[axis]) return false;
  }
  return true;
}

// The data and shape of the required input at `index`.
template <typename T>
Status* shaped_input(const Api& api, const KernelContext* context, size_t index, const T*& data,
                     Dimensions& shape) {
  const Value* value = nullptr;
  RETURN_IF_FAILED(api.Input(context, index, &value));
  if (!value) return refuse(api, "an input is missing");
  RETURN_IF_FAILED(ort::data_of(api, value, data));
  return ort::dimensions(api, value, shape);
}

// The data and the number of elements of an optional input; leaves both unchanged if it is absent.
inline Status* optional_rows(const Api& api, const KernelContext* context, size_t index,
                             const long*& data, int64_t& count) {
  const Value* value = nullptr;
  RETURN_IF_FAILED(api.Input(context, index, &value));
  if (!value) return nullptr;
  Dimensions shape;
  RETURN_IF_FAILED(ort::data_of(api, value, data));
  RETURN_IF_FAILED(ort::dimensions(api, value, shape));
  count = shape.last();
  return nullptr;
}

inline Status* load(const Api& api) {
  const char* failure = load();
  return failure ? api.CreateStatus(ort::kRuntimeException, failure) : nullptr;
}

// Loads the device code and reads two attributes of a node.
template <typename A, typename B>
Status* load_and_read(const Api& api, const KernelInfo* info, const char* first, A& a,
                      const char* second, B& b) {
  RETURN_IF_FAILED(load(api));
  RETURN_IF_FAILED(api.Attribute(info, first, &a));
  return api.Attribute(info, second, &b);
}

inline Status* check_width(const Api& api, int64_t width, int64_t largest) {
  if (width % kVector == 0 && width > 0 && width <= largest) return nullptr;
  return refuse(api, "a row has an unsupported size");
}

template <bool IsBFloat>
struct Typed {
  static constexpr ort::ElementType kType = IsBFloat ? ort::kBFloat16 : ort::kFloat16;
  static constexpr const char* kProvider = kProviderName;
};

// Operators that other files define.
const ort::Operator& linear(bool is_bfloat);
const ort::Operator& decode_attention(bool is_bfloat);
const ort::Operator& split(bool is_bfloat);
const ort::Operator& encoder_attention(bool is_bfloat);
const ort::Operator& pool(bool is_bfloat);
const ort::Operator& key_ranges();

}  // namespace cuda
