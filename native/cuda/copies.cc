// Batched copies in device memory, for moves of slots and outputs of encoders.
// server/runtime/cuda/copies.py calls this.

#include "../exported.h"
#include "operators.h"

namespace {

constexpr int kThreads = 256;
constexpr int64_t kThreadBytes = 64, kMaxBlocks = 32;  // per thread; blocks per copy
constexpr int64_t kMaxBytes = int64_t{1} << 31;

}  // namespace

// Enqueues independent copies, in any order, on a stream of the current device; does not wait for
// them. Allocates nothing. Returns null, or an error message.
EXPORTED const char* triune_copy(const device::Copy* copies, int64_t num_copies, void* stream) {
  if (const char* failure = cuda::load()) return failure;
  constexpr int64_t kMaxCopies = device::CopyArguments::kMaxCopies;
  for (int64_t first = 0; first < num_copies; first += kMaxCopies) {
    device::CopyArguments arguments;
    const int64_t count = num_copies - first < kMaxCopies ? num_copies - first : kMaxCopies;
    int64_t largest = 1;
    for (int64_t i = 0; i < count; i++) {
      const device::Copy& copy = arguments.copies[i] = copies[first + i];
      if (copy.width * copy.num_parts > largest) largest = copy.width * copy.num_parts;
    }
    if (largest >= kMaxBytes) return "a copy is too large for the kernel";
    const int64_t blocks = cuda::divide_up(largest, kThreads * kThreadBytes);
    arguments.num_blocks = static_cast<int>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
    if (const char* failure = cuda::launch(stream, cuda::kCopyParts, count * arguments.num_blocks,
                                           kThreads, &arguments)) {
      return failure;
    }
  }
  return nullptr;
}
