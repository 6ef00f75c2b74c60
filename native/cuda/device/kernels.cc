// The exported kernels, for both 16-bit types. native/cuda/driver.h launches them.

#include "activation.h"
#include "advance.h"
#include "best_token.h"
#include "copy.h"
#include "decode_attention.h"
#include "encoder_attention.h"
#include "extreme.h"
#include "linear.h"
#include "norm.h"
#include "pool.h"
#include "split.h"
#include "top_tokens.h"

using namespace device;

#define DEFINE(suffix, T)                                                                      \
  KERNEL void norm_1_##suffix(NormArguments<T> a) { normalize_row<T, 1>(a); }                  \
  KERNEL void norm_4_##suffix(NormArguments<T> a) { normalize_row<T, 4>(a); }                  \
  KERNEL void activate_##suffix(ActivationArguments<T> a) { activate(a); }                     \
  KERNEL void split_##suffix(SplitArguments<T> a) { split(a); }                                \
  KERNEL void linear_8_##suffix(LinearArguments<T> a) { multiply_rows<T, 1, false>(a); }       \
  KERNEL void linear_16_##suffix(LinearArguments<T> a) { multiply_rows<T, 2, false>(a); }      \
  KERNEL void linear_norm_##suffix(LinearArguments<T> a) { multiply_rows<T, 1, true>(a); }     \
  KERNEL void attend_32_##suffix(DecodeAttentionArguments<T> a) { attend<T, 32>(a); }          \
  KERNEL void attend_64_##suffix(DecodeAttentionArguments<T> a) { attend<T, 64>(a); }          \
  KERNEL void attend_96_##suffix(DecodeAttentionArguments<T> a) { attend<T, 96>(a); }          \
  KERNEL void attend_128_##suffix(DecodeAttentionArguments<T> a) { attend<T, 128>(a); }        \
  KERNEL void attend_256_##suffix(DecodeAttentionArguments<T> a) { attend<T, 256>(a); }        \
  KERNEL void combine_parts_##suffix(DecodeAttentionArguments<T> a) { combine_parts(a); }        \
  KERNEL void attend_text_32_##suffix(EncoderAttentionArguments<T> a) { attend_text<T, 32>(a); }\
  KERNEL void attend_text_64_##suffix(EncoderAttentionArguments<T> a) { attend_text<T, 64>(a); }\
  KERNEL void attend_text_96_##suffix(EncoderAttentionArguments<T> a) { attend_text<T, 96>(a); }\
  KERNEL void attend_text_128_##suffix(EncoderAttentionArguments<T> a) { attend_text<T, 128>(a); }\
  KERNEL void pool_##suffix(PoolArguments<T> a) { pool(a); }

DEFINE(fp16, Half)
DEFINE(bf16, BFloat)

KERNEL void key_ranges(KeyRangesArguments a) { find_key_ranges(a); }
KERNEL void best_token(BestTokenArguments a) { find_best_token(a); }
KERNEL void top_tokens(TopTokensArguments a) { find_top_tokens(a); }
KERNEL void advance_rows(AdvanceArguments a) { advance(a); }
KERNEL void copy_parts(CopyArguments a) { copy_in_parts(a); }
KERNEL void extreme_of_row(ExtremeArguments a) { find_extreme_of_row(a); }
KERNEL void extremes_across(ExtremeArguments a) { find_extremes_across(a); }
