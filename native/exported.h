// Marks functions that Python calls through ctypes (server/runtime/kernels/), or that ONNX Runtime
// looks up by name.
#pragma once

#define EXPORTED extern "C" __attribute__((visibility("default")))
