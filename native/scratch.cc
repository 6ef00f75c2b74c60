#include "scratch.h"

#include <pthread.h>
#include <stdlib.h>

namespace ort {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kLeastKept = 64 * 1024, kMostKept = 8 * 1024 * 1024;

struct Kept {
  void* data;
  size_t num_bytes;
};

__thread Kept kept = {nullptr, 0};

// Frees what a thread kept when it ends, which only a key of its own is told.
pthread_key_t key;
bool has_key = false;
pthread_once_t once = PTHREAD_ONCE_INIT;

void make_key() { has_key = pthread_key_create(&key, free) == 0; }

bool keep(const Kept& piece) {
  if (pthread_once(&once, make_key) || !has_key) return false;
  if (pthread_setspecific(key, piece.data)) return false;
  kept = piece;
  return true;
}

}  // namespace

void* Scratch::allocate(size_t num_bytes) {
  release();
  if (num_bytes >= kLeastKept && kept.num_bytes >= num_bytes) {
    const Kept piece = kept;
    if (keep({nullptr, 0})) {
      data_ = piece.data;
      num_bytes_ = piece.num_bytes;
      return data_;
    }
  }
  num_bytes_ = (num_bytes / kAlignment + 1) * kAlignment;
  return data_ = aligned_alloc(kAlignment, num_bytes_);
}

void Scratch::release() {
  void* unused = data_;
  if (data_ && num_bytes_ >= kLeastKept && num_bytes_ <= kMostKept && num_bytes_ > kept.num_bytes) {
    void* const before = kept.data;
    if (keep({data_, num_bytes_})) unused = before;
  }
  free(unused);
  data_ = nullptr;
}

}  // namespace ort
