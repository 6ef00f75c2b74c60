// Entry points of the library: the kernels that this CPU supports, for
// server/runtime/kernels/library.py, and the registration of the operators with ONNX Runtime.

#include "attention_operator.h"
#include "block_matmul_operator.h"
#include "cpu_features.h"
#include "embedding_operator.h"
#include "exported.h"
#include "int8_matmul_operator.h"
#include "kernels.h"
#include "matmul_operator.h"
#include "norm_operator.h"
#include "operator.h"
#include "ssru_operator.h"
#include "token_sum_operator.h"

namespace {

// Flags; server/runtime/kernels/library.py has the same numbers.
enum Kernels : int {
  kInt8MatMul = 1,
  kMatMul = 2,
  kLogits = 4,
  kAttention = 8,
  kNorm = 16,
  kBlockMatMul = 32,
  kTokenSum = 64,
  kSsru = 128,
  kEmbedding = 256,
  kAll = 511
};

}  // namespace

// The kernels that this CPU can run.
EXPORTED int triune_supported_kernels() {
  return has_kernels() ? kAll : 0;
}

// The supported kernels that are faster than ONNX Runtime's own operators on this CPU. ONNX Runtime
// multiplies int8 with VNNI and fp32 with AVX-512 if the CPU has them; the kernels here use both or
// neither. On AArch64, speeds have not been compared.
EXPORTED int triune_preferred_kernels() {
  int kernels = triune_supported_kernels();
#ifdef __x86_64__
  if (cpu_features::has_avx512_and_vnni()) return kernels;
  if (cpu_features::has_vnni()) kernels &= ~kInt8MatMul;
  if (cpu_features::has_avx512()) kernels &= ~kMatMul;
#endif
  return kernels;
}

// ONNX Runtime calls this for each session that registers the library.
EXPORTED ort::Status* RegisterCustomOps(ort::Session* options, const ort::ApiBase* base) {
  return ort::register_operators(
      options, base,
      {&ort::dynamic_int8_matmul(), &ort::packed_matmul(), &ort::dynamic_block_matmul(),
       &ort::attention(), &ort::norm(), &ort::token_sum(), &ort::ssru(), &ort::embedding(),
       &ort::block_embedding()});
}
