// Marks the functions that Python calls by ctypes (server/runtime/kernels/), or that ONNX Runtime
// looks up by name.
#pragma once

#define EXPORTED extern "C" __attribute__((visibility("default")))
