// Runs device code on a CPU. The threads of a block take turns in random order, and a warp runs as far
// ahead of others as barriers let it, so that code that lacks one gives wrong results.
#pragma once

namespace emulator {

constexpr int kMaxThreads = 1024;

// A kernel, with a pointer to its parameter.
using Kernel = void (*)(const void* arguments);

// Runs `kernel` in `num_blocks` blocks, one after the other. Returns null, or what the code does that
// a device does not define.
const char* run(Kernel kernel, long num_blocks, int num_threads, const void* arguments);

}  // namespace emulator
