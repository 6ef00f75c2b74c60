// Temporary memory for one run of an operator.
#pragma once

#include <stddef.h>

namespace ort {

// A block aligned to 64 bytes. A thread keeps its largest block of 16 KiB to 8 MiB for its next
// run: malloc would return large blocks to the operating system at once, so that each run would
// fault in and clear every page, and would merge smaller blocks with their neighbours.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Null if memory runs out. Releases the previous block.
  void* allocate(size_t num_bytes);

 private:
  void release();

  void* data_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace ort
