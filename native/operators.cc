// What the library says to the server and to ONNX Runtime.

#include "operator.h"
#include "row_int8.h"
#include "row_int8_operator.h"

namespace {

enum Kernels : int { kRowInt8 = 1 };  // server/backend/kernels/library.py

}  // namespace

extern "C" {

// What this processor can run.
__attribute__((visibility("default"))) int triune_runnable() {
  return row_int8::runs_here() ? kRowInt8 : 0;
}

// What is faster here than ONNX Runtime's own operators.
__attribute__((visibility("default"))) int triune_worthwhile() {
  return row_int8::runs_here() && !row_int8::has_vnni() ? kRowInt8 : 0;
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
  }
  return api.Add(options, domain);
}
}
