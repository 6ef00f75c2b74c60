#include "kernels.h"

#include "exported.h"
#include "cpu_features.h"

namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

namespace {

const Kernels* used = nullptr;  // until somebody asks

// Of 0 bits, the best there are; null: this processor has none such.
const Kernels* of_bits(int bits) {
  if (bits != 256 && processor::has_avx512_and_vnni()) return &avx512::kernels;
  return bits == 512 ? nullptr : &avx2::kernels;
}

}  // namespace

const Kernels& kernels() {
  const Kernels* found = __atomic_load_n(&used, __ATOMIC_RELAXED);
  if (!found) {
    found = of_bits(0);
    __atomic_store_n(&used, found, __ATOMIC_RELAXED);
  }
  return *found;
}

// For tests and measurements: registers of 256 or 512 bits, for all that is packed and run from now
// on; 0: the best. False if this processor has none such.
EXPORTED bool triune_use_registers(int bits) {
  const Kernels* found = processor::has_avx2_and_fma() ? of_bits(bits) : nullptr;
  if (found) __atomic_store_n(&used, found, __ATOMIC_RELAXED);
  return found;
}
