#include "kernels.h"

#include "cpu_features.h"
#include "exported.h"

#ifdef __aarch64__
namespace neon {
extern const KernelTable kernel_table;
}
#else
namespace avx2 {
extern const KernelTable kernel_table;
}
namespace avx512 {
extern const KernelTable kernel_table, tile_kernel_table;
}
#endif

namespace {

const KernelTable* chosen = nullptr;  // until the first call

// `bits`: the width of vectors, 256 or 512; 8192 for AMX tiles beside 512-bit vectors; 0 for the
// widest. Null if this CPU lacks them.
#ifdef __aarch64__
const KernelTable* table_for(int bits) {
  return bits == 0 || bits == 256 ? &neon::kernel_table : nullptr;
}
#else
constexpr int kTileBits = 8192;

const KernelTable* table_for(int bits) {
  const bool has_512_bits = cpu_features::has_avx512_and_vnni();
  if ((bits == 0 || bits == kTileBits) && has_512_bits && cpu_features::has_amx_int8()) {
    return &avx512::tile_kernel_table;
  }
  if ((bits == 0 || bits == 512) && has_512_bits) return &avx512::kernel_table;
  return bits == 0 || bits == 256 ? &avx2::kernel_table : nullptr;
}
#endif

}  // namespace

bool has_kernels() {
#ifdef __aarch64__
  return cpu_features::has_dot_products();
#else
  return cpu_features::has_avx2_and_fma();
#endif
}

const KernelTable& kernels() {
  const KernelTable* table = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
  if (!table) {
    table = table_for(0);
    __atomic_store_n(&chosen, table, __ATOMIC_RELAXED);
  }
  return *table;
}

// For tests and benchmarks: from now on, packs and runs everything with vectors of this width, as
// in table_for(). Returns false if this CPU lacks them.
EXPORTED bool triune_use_registers(int bits) {
  const KernelTable* table = has_kernels() ? table_for(bits) : nullptr;
  if (table) __atomic_store_n(&chosen, table, __ATOMIC_RELAXED);
  return table;
}
