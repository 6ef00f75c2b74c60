// Shared by stand-ins of libraries that launch kernels.

#pragma once

#include <stdlib.h>
#include <string.h>

#define API extern "C" __attribute__((visibility("default")))

// Enqueues a kernel on a stream. If kernels are to compute, calls `run` with a copy of the
// parameters; it returns null or an error message. If `run` is null, logs that the kernel does
// nothing.
extern "C" int StandInLaunch(void* stream, const char* name, const char* (*run)(const void*),
                             const void* parameters, size_t size);

// Handles and descriptors. A handle begins with its stream.
#define CREATE(name)       \
  API int name(void** made) { \
    *made = calloc(1, 256); \
    return *made == nullptr; \
  }

#define LAUNCH(name) \
  API int name(void** handle) { return StandInLaunch(*handle, #name, nullptr, nullptr, 0); }

#define NOTHING(name) \
  API int name() { return 0; }
