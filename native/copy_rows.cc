// Copies rows of state tensors, such as the key/value cache, or a range of their tokens: for forks
// and cached prefixes. server/runtime/kernels/copy_rows.py calls it.

#include <stdint.h>
#include <string.h>

#include "exported.h"

namespace {

// [rows][parts][tokens], contiguous. token_bytes is 0 for a tensor without tokens, which is copied
// as whole rows.
struct Tensor {
  char* data;
  int64_t row_bytes, num_parts, part_bytes, token_bytes;
};

// Tokens start .. stop - 1 of `num_rows` rows from `source` on go to those from `target` on. The
// fields are those of server/runtime/contract.py's Move.
struct Move {
  int64_t source, target, start, stop, num_rows;
};

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
    memmove(to + at, from + at, num_bytes);
  }
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
