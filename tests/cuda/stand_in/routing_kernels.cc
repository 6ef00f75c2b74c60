// Mixture of experts: routing of tokens to experts.
// Source: onnxruntime/contrib_ops/cuda/moe/qmoe_kernels.cu,
// onnxruntime/contrib_ops/cuda/llm/moe_gemm/moe_kernels.cu.

#include <algorithm>

#include <math.h>

#include "computations.h"
#include "elements.h"

namespace stand_in {
namespace {

// Selects the top experts of each row, and their probabilities. Parameters: scores, probabilities,
// experts, rows, number of experts, number selected, whether probabilities are normalized to sum 1.
Computation MakeRouting(const Launch& launch) {
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [scores = launch.Get<const T*>(0), probabilities = launch.Get<float*>(1),
            experts = launch.Get<int*>(2), num_rows = launch.Get<int>(3),
            num_experts = launch.Get<int>(4), count = launch.Get<int>(5),
            is_normalized = launch.Get<bool>(6)] {
      std::vector<int> order(static_cast<size_t>(num_experts));
      for (int64_t row = 0; row < num_rows; ++row) {
        const auto score = [&](int i) { return static_cast<float>(scores[row * num_experts + i]); };
        for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
        std::sort(order.begin(), order.end(), [&](int a, int b) {
          return score(a) != score(b) ? score(a) > score(b) : a < b;
        });
        float sum = 0;
        for (int i = 0; i < (is_normalized ? count : num_experts); ++i) {
          sum += expf(score(order[static_cast<size_t>(i)]) - score(order[0]));
        }
        for (int i = 0; i < count; ++i) {
          const int expert = order[static_cast<size_t>(i)];
          experts[row * count + i] = expert;
          probabilities[row * count + i] = expf(score(expert) - score(order[0])) / sum;
        }
      }
    };
  });
  return made;
}

// Copies each token's row once per expert, and sorts the copies by expert. Copy i of a token is for
// its expert i; copies i of all tokens are consecutive.
// Parameters: experts of tokens, the copy of each row, the row of each copy, the expert of each
// row, the first row of each expert and the number of rows, tokens, experts per token, the first
// expert, the one after the last, the number of experts.
Computation MakeSort(const Launch& launch) {
  return [selected = launch.Get<const int*>(0), copies = launch.Get<int*>(1),
          rows = launch.Get<int*>(2), experts = launch.Get<int*>(3),
          starts = launch.Get<int64_t*>(4), num_tokens = launch.Get<int64_t>(5),
          num_selected = launch.Get<int>(6), first = launch.Get<int>(7), end = launch.Get<int>(8)] {
    int row = 0;
    for (int expert = first; expert < end; ++expert) {
      starts[expert - first] = row;
      for (int64_t i = 0; i < num_tokens * num_selected; ++i) {
        if (selected[i] != expert) continue;
        const int64_t copy = i % num_selected * num_tokens + i / num_selected;
        copies[row] = static_cast<int>(copy);
        rows[copy] = row;
        experts[row++] = expert - first;
      }
    }
    starts[end - first] = row;
  };
}

// The same in three steps, for many tokens. First the copies of each expert, and their number, per
// block of tokens. Parameters: experts of tokens, numbers, copies, tokens, experts per token, the
// first expert.
Computation MakeBlocks(const Launch& launch) {
  return [selected = launch.Get<const int*>(0), counts = launch.Get<int*>(1),
          copies = launch.Get<int*>(2), num_tokens = launch.Get<int64_t>(3),
          num_selected = launch.Get<int64_t>(4), first = launch.Get<int>(5),
          num_experts = launch.grid.x, num_blocks = launch.grid.y, block_size = launch.block.x] {
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      for (int64_t block = 0; block < num_blocks; ++block) {
        const int64_t begin = block * block_size, end = std::min(begin + block_size, num_tokens);
        int count = 0;
        for (int64_t token = begin; token < end; ++token) {
          const int* of_token = selected + token * num_selected;
          const int64_t i = std::find(of_token, of_token + num_selected, first + expert) - of_token;
          if (i == num_selected) continue;
          copies[expert * num_tokens + begin + count++] = static_cast<int>(i * num_tokens + token);
        }
        counts[expert * num_blocks + block] = count;
      }
    }
  };
}

// Second: the first row of each block. Parameters: numbers, first rows of blocks, those of experts,
// numbers of experts and of blocks.
Computation MakeStarts(const Launch& launch) {
  return [counts = launch.Get<const int*>(0), block_starts = launch.Get<int*>(1),
          starts = launch.Get<int64_t*>(2), num_experts = launch.Get<int64_t>(3),
          num_blocks = launch.Get<int64_t>(4)] {
    int row = 0;
    for (int64_t i = 0; i < num_experts * num_blocks; ++i) {
      if (i % num_blocks == 0) starts[i / num_blocks] = row;
      block_starts[i] = row;
      row += counts[i];
    }
    starts[num_experts] = row;
  };
}

// Third: the rows. Parameters: numbers, first rows of blocks, copies of experts, the expert of each
// row, the copy of each row, the row of each copy, tokens.
Computation MakeMerged(const Launch& launch) {
  return [counts = launch.Get<const int*>(0), block_starts = launch.Get<const int*>(1),
          of_experts = launch.Get<const int*>(2), experts = launch.Get<int*>(3),
          copies = launch.Get<int*>(4), rows = launch.Get<int*>(5), num_tokens = launch.Get<int>(6),
          num_experts = launch.grid.x, num_blocks = launch.grid.y, block_size = launch.block.x] {
    for (int64_t i = 0; i < int64_t{num_experts} * num_blocks; ++i) {
      const int64_t expert = i / num_blocks, begin = i % num_blocks * block_size;
      for (int j = 0; j < counts[i]; ++j) {
        const int copy = of_experts[expert * num_tokens + begin + j], row = block_starts[i] + j;
        copies[row] = copy;
        experts[row] = static_cast<int>(expert);
        rows[copy] = row;
      }
    }
  };
}

// Copies tokens, and the probabilities of their experts.
Computation MakeRows(const Launch& launch) {
  if (launch.name.arguments[0] != launch.name.arguments[1]) return nullptr;
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [from = launch.Get<const T*>(0), to = launch.Get<T*>(1),
            probabilities = launch.Get<const float*>(2), factors = launch.Get<float*>(3),
            copies = launch.Get<const int*>(4), num_tokens = launch.Get<int64_t>(5),
            size = launch.Get<int64_t>(6), num_selected = launch.Get<int64_t>(7),
            starts = launch.Get<const int64_t*>(10), num_experts = launch.Get<int64_t>(13)] {
      for (int64_t row = 0; row < starts[num_experts]; ++row) {
        const int64_t token = copies[row] % num_tokens, number = copies[row] / num_tokens;
        std::copy_n(from + token * size, size, to + row * size);
        if (factors == nullptr) continue;
        factors[row] = probabilities ? probabilities[token * num_selected + number] : 1;
      }
    };
  });
  return made;
}

#define EXPERTS "onnxruntime::llm::kernels::cutlass_kernels::"

constexpr Kernel kKernels[] = {
    {EXPERTS "blockExpertPrefixSumKernel", MakeBlocks},
    {EXPERTS "expandInputRowsKernel", MakeRows},
    {EXPERTS "fusedBuildExpertMapsSortFirstTokenKernel", MakeSort},
    {EXPERTS "globalExpertPrefixSumKernel", MakeStarts},
    {EXPERTS "globalExpertPrefixSumLargeKernel", MakeStarts},
    {EXPERTS "mergeExpertPrefixSumKernel", MakeMerged},
    {"onnxruntime::contrib::cuda::SoftmaxTopKWarpBitonicKernel", MakeRouting},
};

}  // namespace

const Kernels kRoutingKernels = {kKernels, sizeof(kKernels) / sizeof(*kKernels)};

}  // namespace stand_in
