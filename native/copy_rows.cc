// Copies rows of state tensors, such as the key/value cache, or ranges of their tokens, for forks
// and cached prefixes. Returns the pages of unused tokens to the operating system.
// server/runtime/kernels/copy_rows.py calls both.

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "exported.h"

namespace {

// [rows][parts][tokens], contiguous. token_bytes is 0 for a tensor without tokens, which is copied
// as whole rows.
struct Tensor {
  char* data;
  int64_t row_bytes, num_parts, part_bytes, token_bytes;
};

// Copies tokens start .. stop - 1 of `num_rows` rows, from row `source` on to row `target` on. Has
// the fields of Move in server/runtime/memory.py.
struct Move {
  int64_t source, target, start, stop, num_rows;
};

// Bytes per page.
uintptr_t page_size() {
  static const uintptr_t size = sysconf(_SC_PAGESIZE);
  return size;
}

// Maps all pages that will be written in one call, in half the time of a page fault for each.
// Errors are ignored: the pages are then mapped by the writes.
void populate(char* begin, int64_t num_bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE of Linux 5.14
  constexpr int64_t kMinBytes = 16 * 1024;
  if (num_bytes < kMinBytes) return;
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / page_size() * page_size();
  madvise(reinterpret_cast<void*>(first), reinterpret_cast<uintptr_t>(begin) + num_bytes - first,
          kPopulateWrite);
}

void copy_row(const Tensor& tensor, int64_t source, int64_t target, const Move& move) {
  const char* from = tensor.data + source * tensor.row_bytes;
  char* to = tensor.data + target * tensor.row_bytes;
  if (!tensor.token_bytes) {
    memmove(to, from, tensor.row_bytes);
    return;
  }
  const int64_t first = move.start * tensor.token_bytes;
  const int64_t num_bytes = (move.stop - move.start) * tensor.token_bytes;
  for (int64_t part = 0; part < tensor.num_parts; part++) {
    const int64_t at = part * tensor.part_bytes + first;
    populate(to + at, num_bytes);
    memmove(to + at, from + at, num_bytes);
  }
}

// Returns the whole pages in [begin, end) to the system; reading them again yields zeros.
void release_pages(char* begin, char* end) {
  const uintptr_t page = page_size();
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace

// Applies the moves in order to each tensor. A later move sees what an earlier one wrote.
EXPORTED void triune_copy_rows(const Tensor* tensors, int64_t num_tensors, const Move* moves,
                               int64_t num_moves) {
  for (int64_t t = 0; t < num_tensors; t++) {
    for (int64_t m = 0; m < num_moves; m++) {
      for (int64_t row = 0; row < moves[m].num_rows; row++) {
        copy_row(tensors[t], moves[m].source + row, moves[m].target + row, moves[m]);
      }
    }
  }
}

// Returns the pages of tokens from `first_token` on, of one row of each tensor, to the system. Rows
// of tensors without tokens are returned if `first_token` is 0. Memory must be private, anonymous.
EXPORTED void triune_release_row(const Tensor* tensors, int64_t num_tensors, int64_t row,
                                 int64_t first_token) {
  for (int64_t t = 0; t < num_tensors; t++) {
    const Tensor& tensor = tensors[t];
    char* begin = tensor.data + row * tensor.row_bytes;
    if (!first_token) {
      release_pages(begin, begin + tensor.row_bytes);
      continue;
    }
    const int64_t kept = first_token * tensor.token_bytes;
    for (int64_t part = 0; tensor.token_bytes && part < tensor.num_parts; part++) {
      char* from = begin + part * tensor.part_bytes;
      release_pages(from + kept, from + tensor.part_bytes);
    }
  }
}
