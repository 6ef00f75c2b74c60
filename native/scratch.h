// Memory of one run of an operator.
#pragma once

#include <stddef.h>

namespace ort {

// Aligned as AVX-512 wants it. What is large comes from the system page by page, each of which it
// clears: a thread keeps one such piece for its next run.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Null where there is none. What was allocated before is given back.
  void* allocate(size_t num_bytes);

 private:
  void release();

  void* data_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace ort
