// The kernels of the library, each for both 16-bit types. native/cuda/driver.h launches them.

#include "activation.h"
#include "best_token.h"
#include "extreme.h"
#include "norm.h"
#include "split.h"

using namespace device;

#define DEFINE(suffix, T)                                                                      \
  KERNEL void norm_1_##suffix(NormArguments<T> a) { normalize_row<T, 1>(a); }                  \
  KERNEL void norm_4_##suffix(NormArguments<T> a) { normalize_row<T, 4>(a); }                  \
  KERNEL void activate_##suffix(ActivationArguments<T> a) { activate(a); }                     \
  KERNEL void split_##suffix(SplitArguments<T> a) { split(a); }

DEFINE(fp16, Half)
DEFINE(bf16, BFloat)

KERNEL void best_token(BestTokenArguments a) { find_best_token(a); }
KERNEL void extreme_of_row(ExtremeArguments a) { find_extreme_of_row(a); }
KERNEL void extremes_across(ExtremeArguments a) { find_extremes_across(a); }
