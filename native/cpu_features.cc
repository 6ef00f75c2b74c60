#include "cpu_features.h"

#ifdef __aarch64__

#include <sys/auxv.h>

namespace cpu_features {

// Bit number: https://docs.kernel.org/arch/arm64/elf_hwcaps.html
bool has_dot_products() {
  constexpr unsigned long kAsimdDp = 1ul << 20;
  return getauxval(AT_HWCAP) & kAsimdDp;
}
bool has_avx512_bf16() { return false; }

}  // namespace cpu_features

#else

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

// Bit numbers: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID.
namespace cpu_features {
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers found;
  if (!__get_cpuid_count(leaf, subleaf, &found.a, &found.b, &found.c, &found.d)) return {};
  return found;
}

bool has_bit(unsigned word, unsigned bit) { return word & 1u << bit; }

// Whether the operating system saves the registers in `mask` (XCR0) at a context switch.
bool os_saves(unsigned mask) {
  if (!has_bit(cpuid(1).c, 27)) return false;  // OSXSAVE
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & mask) == mask;
}

constexpr unsigned kAvxState = 0x06, kAvx512State = 0xe6, kAmxState = 0x60000;

// Linux enables the AMX tile state of a process on request only:
// https://docs.kernel.org/arch/x86/xstate.html
bool request_amx() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_avx2_and_fma() {
  return os_saves(kAvxState) && has_bit(cpuid(7).b, 5) && has_bit(cpuid(1).c, 12) &&
         has_bit(cpuid(1).c, 29);
}
bool has_avx512() { return os_saves(kAvx512State) && has_bit(cpuid(7).b, 16); }
bool has_avx512_and_vnni() {
  const Registers found = cpuid(7);
  return has_avx2_and_fma() && has_avx512() && has_bit(found.b, 17) && has_bit(found.b, 30) &&
         has_bit(found.b, 31) && has_bit(found.c, 11);
}
bool has_vnni() {
  if (has_bit(cpuid(7).c, 11)) return true;  // AVX512_VNNI
  return cpuid(7).a >= 1 && has_bit(cpuid(7, 1).a, 4);
}
bool has_avx512_bf16() {
  return has_avx512() && cpuid(7).a >= 1 && has_bit(cpuid(7, 1).a, 5);
}

bool has_amx_int8() {
  static const bool found = os_saves(kAmxState) && has_bit(cpuid(7).d, 24) &&
                            has_bit(cpuid(7).d, 25) && request_amx();
  return found;
}

}  // namespace cpu_features

#endif
