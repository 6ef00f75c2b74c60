// Runs device code on a CPU. The threads of a block take turns in random order, and a warp runs as
// far ahead of others as barriers allow, so that a missing barrier gives wrong results.
#pragma once

namespace emulator {

constexpr int kMaxThreads = 1024;

// A kernel; `arguments` points to its parameter.
using Kernel = void (*)(const void* arguments);

// Runs `kernel` in `num_blocks` blocks, one after another. Returns null, or an error message if the
// code relies on what CUDA leaves undefined.
const char* run(Kernel kernel, long num_blocks, int num_threads, const void* arguments);

}  // namespace emulator
