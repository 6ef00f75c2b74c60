// What the server calls by itself, without ONNX Runtime.
#pragma once

#define EXPORTED extern "C" __attribute__((visibility("default")))
