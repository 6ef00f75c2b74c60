// The kernels that simd/ compiles once per target, and the choice of a target at run time.
#pragma once

#include "adapter_products.h"
#include "attention.h"
#include "block_matmul.h"
#include "candidate_matmul.h"
#include "embedding.h"
#include "int8_matmul.h"
#include "logits.h"
#include "matmul.h"
#include "norm.h"
#include "ssru.h"
#include "token_sum.h"
#include "weight_format.h"

// One target's kernels.
struct KernelTable {
  matmul::Multiply* matmul_multiply;
  adapters::Multiply* adapter_multiply;
  weight_format::Compress* compress;
  int8_matmul::Quantize* int8_quantize;
  int8_matmul::Multiply* int8_multiply;
  candidate_matmul::Multiply* candidate_multiply;
  bool uses_group_pairs;  // int8_multiply needs the group order of int8_pairing.cc
  block_matmul::Quantize* block_quantize;
  block_matmul::Multiply* block_multiply;
  block_matmul::ReadOutput* block_read_output;
  attention::WriteCache* write_cache;
  attention::Attend* attend;
  norm::Normalize* normalize;
  ssru::Advance* ssru_advance;
  embedding::Restore* embedding_restore;
  embedding::Add* embedding_add;
  token_sum::Sum* token_sum;
  logits::LogSumExp* log_sum_exp;
  logits::TopIndices* top_indices;
  logits::TopTokens* top_tokens;
};

// Whether this CPU can run kernels: it has AVX2 and FMA, or SDOT.
bool has_kernels();

// The kernels for the widest registers of this CPU, if has_kernels().
const KernelTable& kernels();
