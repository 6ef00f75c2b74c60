// What simd/ compiles once for each set of instructions, and which set is used.
#pragma once

#include "attention.h"
#include "matmul.h"
#include "norm.h"
#include "int8_matmul.h"
#include "logits.h"

struct Kernels {
  matmul::Multiply* multiply_floats;
  row_int8::Quantize* quantize;
  row_int8::Multiply* multiply_bytes;
  bool adds_groups_in_pairs;  // of bytes: row_int8_pairs.cc
  attention::Write* write;
  attention::Attend* attend;
  norm::Normalize* normalize;
  vocabulary::LogSumExp* log_sum_exp;
  vocabulary::Top* top;
  vocabulary::Likeliest* likeliest;
};

// Those of the widest registers that this processor has, where it can run any.
const Kernels& kernels();
