// What stand-ins of libraries share that launch kernels: these are logged, and do nothing.

#pragma once

#include <stdlib.h>
#include <string.h>

#define API extern "C" __attribute__((visibility("default")))

extern "C" int StandInLaunch(void* stream, const char* name);

// Handles and descriptors. A handle begins with its stream.
#define CREATE(name)       \
  API int name(void** made) { \
    *made = calloc(1, 64); \
    return *made == nullptr; \
  }

#define LAUNCH(name) \
  API int name(void** handle) { return StandInLaunch(*handle, #name); }

#define NOTHING(name) \
  API int name() { return 0; }
