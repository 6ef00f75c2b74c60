#include "kernels.h"

#include "cpu_features.h"
#include "exported.h"

namespace avx2 {
extern const KernelTable kernel_table;
}
namespace avx512 {
extern const KernelTable kernel_table, tile_kernel_table;
}

namespace {

const KernelTable* chosen = nullptr;  // until the first call

constexpr int kTileBits = 8192;

// `bits`: register width 256 or 512; 8192 for AMX tiles beside 512-bit vectors; 0 for the widest.
// Null if this CPU lacks them.
const KernelTable* table_for(int bits) {
  const bool has_512_bits = cpu_features::has_avx512_and_vnni();
  if ((bits == 0 || bits == kTileBits) && has_512_bits && cpu_features::has_amx_int8()) {
    return &avx512::tile_kernel_table;
  }
  if ((bits == 0 || bits == 512) && has_512_bits) return &avx512::kernel_table;
  return bits == 0 || bits == 256 ? &avx2::kernel_table : nullptr;
}

}  // namespace

const KernelTable& kernels() {
  const KernelTable* table = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
  if (!table) {
    table = table_for(0);
    __atomic_store_n(&chosen, table, __ATOMIC_RELAXED);
  }
  return *table;
}

// For tests and benchmarks: from now on, packs and runs everything with registers of this width, as
// in table_for(). Returns false if this CPU lacks them.
EXPORTED bool triune_use_registers(int bits) {
  const KernelTable* table = cpu_features::has_avx2_and_fma() ? table_for(bits) : nullptr;
  if (table) __atomic_store_n(&chosen, table, __ATOMIC_RELAXED);
  return table;
}
