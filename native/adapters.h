// LoRA adapters of a matrix product (Hu et al. 2021): y = epilogue(x W + x A_i B_i), with the adapter
// i of each row, as in Punica (Chen et al. 2023). Rows of one adapter share products with A and B.
#pragma once

#include "adapter_products.h"
#include "matmul_call.h"

namespace ort {

// Inputs of a product with adapters, the last of the operator, all absent or present: the adapter of
// rows, int32 [n], counted from 1 and 0 for none, n dividing the number of rows, so that adjacent
// rows have the same; A, uint8 [adapters][bytes of matmul::PackedMatrix [num_inputs, rank]]; B, uint8
// [adapters][bytes of its blocks, each a PackedMatrix]; the blocks, int32 [blocks][5], as Block.
//
// B of concatenated matrices, such as queries, keys and values, is block diagonal: only its blocks are
// stored.
#define ADAPTER_PARAMETERS {kInt32, true}, {kUInt8, true}, {kUInt8, true}, {kInt32, true}

// A block of B. Its panels are those of W from first_panel on or, with the other placements, those of one
// half of the outputs, which take two panels of W each. server/runtime/kernels/adapters.py has the
// same order.
struct AdapterBlock {
  int32_t first_rank, num_ranks, first_panel, num_panels;
  adapters::Placement placement;
};

// Attributes, required: adapter_rank, a multiple of 16 or 0; adapter_a_format and adapter_b_format,
// numbers of WeightFormat.
struct AdapterAttributes {
  int64_t rank;
  WeightFormat a_format, b_format;

  Status* read(const Api& api, const KernelInfo* info);
};

// The adapters of the rows of one run. `call` and the norm of x must outlive it.
class Adapters {
 public:
  // Reads the inputs from `first` on. Fails if their shapes do not fit, or a row has no such adapter.
  // `x_norm`: the norm of x, or null.
  Status* read(const Api& api, const KernelContext* context, const AdapterAttributes& attributes,
               size_t first, const MatMulCall& call, const norm::Norm* x_norm);

  // Tasks that compute x A of all rows; 0 if no row has an adapter. They must end before add().
  int64_t num_tasks() const { return num_groups_ ? num_groups_ * tasks_per_group_ : 0; }
  // False if memory runs out.
  bool run_task(int64_t index) const;

  // Computes x A B of rows and panels of W, in `scratch`, and adds it to `epilogue`. False if memory
  // runs out.
  bool add(const Rows& rows, int64_t first_panel, int64_t last_panel, Scratch& scratch,
           Epilogue& epilogue) const;

 private:
  // Positions in call.rows of the rows of one adapter, ascending.
  struct Group {
    int64_t adapter, begin, end;
  };

  Status* check_blocks(const Api& api, int64_t num_bytes) const;
  Status* find_groups(const Api& api, const int32_t* adapters, int64_t count, int64_t num_adapters);
  matmul::PackedMatrix matrix_of(const uint8_t* data, WeightFormat format, int64_t num_inputs,
                                 int64_t num_outputs, int64_t adapter) const;

  const MatMulCall* call_;
  const norm::Norm* x_norm_;
  const uint8_t *a_, *b_;
  const AdapterBlock* blocks_;
  int64_t num_blocks_, b_bytes_;  // of one adapter
  AdapterAttributes attributes_;
  int64_t num_groups_, tasks_per_group_, panels_per_task_, num_row_blocks_;
  Group* groups_;
  int32_t* positions_;  // of all groups
  float* products_;     // x A: [rows][rank]
  Scratch memory_;
};

}  // namespace ort
