#include "scratch.h"

#include <pthread.h>
#include <stdlib.h>

#include "integers.h"

namespace ort {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMinCached = 16 * 1024, kMaxCached = 8 * 1024 * 1024;

struct Block {
  void* data;
  size_t num_bytes;
};

__thread Block cached = {nullptr, 0};

// A key whose destructor frees the thread's block when the thread ends.
pthread_key_t key;
bool has_key = false;
pthread_once_t once = PTHREAD_ONCE_INIT;

void make_key() { has_key = pthread_key_create(&key, free) == 0; }

// Makes `block` the thread's cached one; does not free the previous one.
bool cache(const Block& block) {
  if (pthread_once(&once, make_key) || !has_key) return false;
  if (pthread_setspecific(key, block.data)) return false;
  cached = block;
  return true;
}

}  // namespace

void* Scratch::allocate(size_t num_bytes) {
  release();
  if (num_bytes >= kMinCached && cached.num_bytes >= num_bytes) {
    const Block block = cached;
    if (cache({nullptr, 0})) {
      data_ = block.data;
      num_bytes_ = block.num_bytes;
      return data_;
    }
  }
  num_bytes_ = round_up(max(1, num_bytes), kAlignment);
  return data_ = aligned_alloc(kAlignment, num_bytes_);
}

void Scratch::release() {
  void* unused = data_;
  if (data_ && num_bytes_ >= kMinCached && num_bytes_ <= kMaxCached &&
      num_bytes_ > cached.num_bytes) {
    void* const previous = cached.data;
    if (cache({data_, num_bytes_})) unused = previous;
  }
  free(unused);
  data_ = nullptr;
}

}  // namespace ort
