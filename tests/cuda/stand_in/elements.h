// Element types, by their names in signatures.

#pragma once

#include <string>
#include <vector>

#include <stdint.h>
#include <string.h>

namespace stand_in {

using Half = _Float16;

// Rounds to nearest, ties to even.
struct BFloat {
  uint16_t bits;
  BFloat() = default;
  explicit BFloat(float value) {
    uint32_t whole;
    memcpy(&whole, &value, sizeof(whole));
    const bool is_nan = value != value;
    bits = static_cast<uint16_t>(is_nan ? 0x7fff : (whole + 0x7fff + (whole >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t whole = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &whole, sizeof(value));
    return value;
  }
};

// The type in which elements of T are computed.
template <typename T>
struct Computed {
  using Type = T;
};
template <>
struct Computed<Half> {
  using Type = float;
};
template <>
struct Computed<BFloat> {
  using Type = float;
};
template <typename T>
using ComputedType = typename Computed<T>::Type;

template <typename T>
struct Tag {
  using Type = T;
};

// Calls `f` with the tag of the floating-point type `name`. Returns false if it is unknown.
template <typename F>
bool VisitFloat(const std::string& name, const F& f) {
  if (name == "__half" || name == "half" || name == "cutlass::half_t") return f(Tag<Half>()), true;
  for (const char* each : {"__nv_bfloat16", "onnxruntime::BFloat16", "cutlass::bfloat16_t"}) {
    if (name == each) return f(Tag<BFloat>()), true;
  }
  if (name == "float") return f(Tag<float>()), true;
  if (name == "double") return f(Tag<double>()), true;
  return false;
}

template <typename F>
bool VisitInteger(const std::string& name, const F& f) {
  if (name == "bool") return f(Tag<bool>()), true;
  if (name == "signed char") return f(Tag<int8_t>()), true;
  if (name == "unsigned char") return f(Tag<uint8_t>()), true;
  if (name == "short") return f(Tag<int16_t>()), true;
  if (name == "unsigned short") return f(Tag<uint16_t>()), true;
  if (name == "int") return f(Tag<int32_t>()), true;
  if (name == "unsigned int") return f(Tag<uint32_t>()), true;
  if (name == "long") return f(Tag<int64_t>()), true;
  if (name == "unsigned long") return f(Tag<uint64_t>()), true;
  return false;
}

template <typename F>
bool Visit(const std::string& name, const F& f) {
  return VisitFloat(name, f) || VisitInteger(name, f);
}

}  // namespace stand_in
