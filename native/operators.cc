// What the library says to the server and to ONNX Runtime.

#include "attention_operator.h"
#include "matmul_operator.h"
#include "norm_operator.h"
#include "operator.h"
#include "processor.h"
#include "row_int8_operator.h"

namespace {

// server/runtime/kernels/library.py
enum Kernels : int {
  kRowInt8 = 1,
  kMatMul = 2,
  kVocabulary = 4,
  kAttention = 8,
  kNorm = 16,
  kAll = 31
};

}  // namespace

extern "C" {

// What this processor can run.
__attribute__((visibility("default"))) int triune_runnable() {
  return processor::has_avx2_and_fma() ? kAll : 0;
}

// What is faster here than ONNX Runtime's own operators, which use more instructions than ours.
__attribute__((visibility("default"))) int triune_worthwhile() {
  int kernels = triune_runnable();
  if (processor::has_avx512_and_vnni()) return kernels;
  if (processor::has_vnni()) kernels &= ~kRowInt8;
  if (processor::has_avx512()) kernels &= ~kMatMul;
  return kernels;
}

// Called by ONNX Runtime when the library is registered.
__attribute__((visibility("default"))) ort::Status* RegisterCustomOps(ort::Session* options,
                                                                      const ort::ApiBase* base) {
  const ort::Table table = base->get_api(ort::kVersion);
  if (!table) return nullptr;
  const ort::Api api(table);
  static ort::Domain* domain = nullptr;
  if (!domain) {
    RETURN_IF_FAILED(api.CreateDomain("triune", &domain));
    RETURN_IF_FAILED(api.Add(domain, &ort::row_int8_matmul()));
    RETURN_IF_FAILED(api.Add(domain, &ort::packed_matmul()));
    RETURN_IF_FAILED(api.Add(domain, &ort::attention()));
    RETURN_IF_FAILED(api.Add(domain, &ort::norm()));
  }
  return api.Add(options, domain);
}
}
