#include "cpu_features.h"

#include <cpuid.h>

// Bits as in Intel's manual of its instruction set, volume 2A, CPUID.
namespace processor {
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers leaf(unsigned number, unsigned part = 0) {
  Registers found;
  if (!__get_cpuid_count(number, part, &found.a, &found.b, &found.c, &found.d)) return {};
  return found;
}

bool has(unsigned word, unsigned bit) { return word & 1u << bit; }

// Whether the system keeps those registers when it switches between threads.
bool keeps(unsigned wanted) {
  if (!has(leaf(1).c, 27)) return false;  // OSXSAVE
  unsigned saved = 0, high = 0;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  return (saved & wanted) == wanted;
}

constexpr unsigned kAvx = 0x06, kAvx512 = 0xe6;

}  // namespace

bool has_avx2_and_fma() {
  return keeps(kAvx) && has(leaf(7).b, 5) && has(leaf(1).c, 12) && has(leaf(1).c, 29);
}
bool has_avx512() { return keeps(kAvx512) && has(leaf(7).b, 16); }
bool has_avx512_and_vnni() {
  const Registers found = leaf(7);
  return has_avx2_and_fma() && has_avx512() && has(found.b, 17) && has(found.b, 30) &&
         has(found.b, 31) && has(found.c, 11);
}
bool has_vnni() {
  if (has(leaf(7).c, 11)) return true;  // AVX512_VNNI
  return leaf(7).a >= 1 && has(leaf(7, 1).a, 4);
}

}  // namespace processor
