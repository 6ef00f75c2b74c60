// Measures what the registers and the memory of this processor can do at most, and prints JSON:
//
//   peak THREADS
//
//   {"operations_per_second": {"fp32": {"AVX2": 1e11, ...}, "int8": {...}},
//    "bytes_per_second": {"1048576": 2e11, ...}}
//
// Operations: each instruction runs on registers alone, with enough independent accumulators to hide
// its latency; a multiply-add counts as two operations. Bytes: all threads together read buffers of
// that many bytes again and again, so that the size decides which cache serves them. Each rate is
// the sum of each thread's best repetition while all threads run.

#define _GNU_SOURCE
#include <cpuid.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kMaxThreads = 1024, kAccumulators = 12, kBlockBytes = 512, kSegmentBytes = 1 << 20 };
// Short repetitions, so that some are not interrupted by other processes.
static const double kRepetitionSeconds = 0.002, kSeconds = 0.15;

static double now(void) {
  struct timespec moment;
  clock_gettime(CLOCK_MONOTONIC, &moment);
  return (double)moment.tv_sec + 1e-9 * (double)moment.tv_nsec;
}

// Kernels of registers: each runs `rounds` of kAccumulators instruction groups. Their operands are
// zeros, which cost no more time than other numbers.

#define ACCUMULATORS_12(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
#define CLOBBERS                                                                                 \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",        \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define ZERO(n) "vpxor %%xmm" #n ", %%xmm" #n ", %%xmm" #n "\n\t"
#define ZEROS ACCUMULATORS_12(ZERO) ZERO(12) ZERO(13) ZERO(14) ZERO(15)

#define KERNEL(name, features, F)                                                                \
  __attribute__((target(features))) static void name(const char* data, size_t rounds) {          \
    (void)data;                                                                                  \
    __asm__ volatile(ZEROS "1:\n\t" ACCUMULATORS_12(F) "dec %0\n\tjnz 1b\n\t"                    \
                     : "+r"(rounds)                                                              \
                     :                                                                           \
                     : CLOBBERS, "cc");                                                          \
  }

#define FMA_256(n) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #n "\n\t"
#define FMA_512(n) "vfmadd231ps %%zmm12, %%zmm13, %%zmm" #n "\n\t"
// Sums stay in 16 bits: widening them to 32 would add a third instruction.
#define MADD_256(n)                              \
  "vpmaddubsw %%ymm12, %%ymm13, %%ymm14\n\t"     \
  "vpaddw %%ymm14, %%ymm" #n ", %%ymm" #n "\n\t"
#define MADD_512(n)                              \
  "vpmaddubsw %%zmm12, %%zmm13, %%zmm14\n\t"     \
  "vpaddw %%zmm14, %%zmm" #n ", %%zmm" #n "\n\t"
#define VNNI_256(n) "%{vex%} vpdpbusd %%ymm12, %%ymm13, %%ymm" #n "\n\t"
#define VNNI_512(n) "vpdpbusd %%zmm12, %%zmm13, %%zmm" #n "\n\t"
#define BF16_512(n) "vdpbf16ps %%zmm12, %%zmm13, %%zmm" #n "\n\t"

KERNEL(fma_256, "avx2,fma", FMA_256)
KERNEL(fma_512, "avx512f", FMA_512)
KERNEL(madd_256, "avx2", MADD_256)
KERNEL(madd_512, "avx512bw", MADD_512)
KERNEL(vnni_256, "avx2,avxvnni", VNNI_256)
KERNEL(vnni_512, "avx512f,avx512vnni", VNNI_512)
KERNEL(bf16_512, "avx512f,avx512bf16", BF16_512)

struct TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t columns[16];
  uint8_t rows[16];
};

#define TILES(instruction)                    \
  instruction " %%tmm6, %%tmm4, %%tmm0\n\t"   \
  instruction " %%tmm7, %%tmm4, %%tmm1\n\t"   \
  instruction " %%tmm6, %%tmm5, %%tmm2\n\t"   \
  instruction " %%tmm7, %%tmm5, %%tmm3\n\t"

#define TILE_KERNEL(name, features, instruction)                                                 \
  __attribute__((target(features))) static void name(const char* data, size_t rounds) {          \
    (void)data;                                                                                  \
    struct TileConfig config = {.palette = 1};                                                   \
    for (int i = 0; i < 8; ++i) config.columns[i] = 64, config.rows[i] = 16;                     \
    __asm__ volatile("ldtilecfg %1\n\t"                                                          \
                     "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\t"                 \
                     "tilezero %%tmm3\n\ttilezero %%tmm4\n\ttilezero %%tmm5\n\t"                 \
                     "tilezero %%tmm6\n\ttilezero %%tmm7\n\t"                                    \
                     "1:\n\t" TILES(instruction) TILES(instruction) TILES(instruction)           \
                     "dec %0\n\tjnz 1b\n\ttilerelease\n\t"                                       \
                     : "+r"(rounds)                                                              \
                     : "m"(config)                                                               \
                     : "cc");                                                                    \
  }

TILE_KERNEL(amx_int8, "amx-tile,amx-int8", "tdpbusd")
TILE_KERNEL(amx_bf16, "amx-tile,amx-bf16", "tdpbf16ps")

// Kernels of memory: each reads `rounds` blocks of kBlockBytes.

#define LOAD_256(n) "vmovdqa " #n "*32(%1), %%ymm" #n "\n\t"
#define LOAD_256_AGAIN(n) "vmovdqa 256+" #n "*32(%1), %%ymm" #n "\n\t"
#define LOAD_512(n) "vmovdqa64 " #n "*64(%1), %%zmm" #n "\n\t"
#define PREFETCH(n) "prefetcht0 2048+" #n "*64(%1)\n\t"
#define EIGHT(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)

#define READ_KERNEL(name, features, body)                                                        \
  __attribute__((target(features))) static void name(const char* data, size_t rounds) {          \
    __asm__ volatile("1:\n\t" body "add $512, %1\n\tdec %0\n\tjnz 1b\n\t"                        \
                     : "+r"(rounds), "+r"(data)                                                  \
                     :                                                                           \
                     : CLOBBERS, "cc", "memory");                                                \
  }

READ_KERNEL(read_256, "avx2", EIGHT(LOAD_256) EIGHT(LOAD_256_AGAIN))
READ_KERNEL(prefetch_256, "avx2", EIGHT(PREFETCH) EIGHT(LOAD_256) EIGHT(LOAD_256_AGAIN))
READ_KERNEL(read_512, "avx512f", EIGHT(LOAD_512))
READ_KERNEL(prefetch_512, "avx512f", EIGHT(PREFETCH) EIGHT(LOAD_512))

typedef void (*Kernel)(const char* data, size_t rounds);

// A thread's part of the work. Memory is read in segments; each repetition goes on where the one
// before has stopped. Registers have no data and one segment.
struct Task {
  Kernel kernel;
  char* data;
  size_t rounds, segments, next, passes;
  pthread_barrier_t* barrier;
  double seconds;
};

static void read_segments(struct Task* task, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    task->kernel(task->data + task->next * task->rounds * kBlockBytes, task->rounds);
    task->next = (task->next + 1) % task->segments;
  }
}

static void* run(void* argument) {
  struct Task* task = argument;
  read_segments(task, 1);  // wakes the wide units up
  pthread_barrier_wait(task->barrier);
  double started = now();
  read_segments(task, task->passes);
  task->seconds = now() - started;
  return NULL;
}

// The sum of each thread's best rate while all run. `work`: units of a segment.
static double best_rate(struct Task model, char** data, double work, int threads) {
  static double best[kMaxThreads];
  static struct Task tasks[kMaxThreads];
  static pthread_t ids[kMaxThreads];
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, (unsigned)threads);
  model.barrier = &barrier;
  model.data = data[0];
  read_segments(&model, 1);
  double started = now();
  read_segments(&model, 1);
  model.passes = (size_t)(kRepetitionSeconds / (now() - started + 1e-9)) + 1;
  for (int i = 0; i < threads; ++i) {
    tasks[i] = model;
    tasks[i].data = data[i];
    best[i] = 0;
  }
  started = now();
  for (int repetition = 0; repetition < 5 || now() - started < kSeconds; ++repetition) {
    for (int i = 0; i < threads; ++i) {
      if (pthread_create(&ids[i], NULL, run, &tasks[i])) exit(2);
    }
    for (int i = 0; i < threads; ++i) {
      pthread_join(ids[i], NULL);
      double rate = work * (double)model.passes / tasks[i].seconds;
      if (rate > best[i]) best[i] = rate;
    }
  }
  pthread_barrier_destroy(&barrier);
  double sum = 0;
  for (int i = 0; i < threads; ++i) sum += best[i];
  return sum;
}

struct Features {
  int avx2, fma, avx512f, avx512bw, avx_vnni, avx512_vnni, avx512_bf16, amx_int8, amx_bf16;
};

static uint64_t enabled_states(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((uint64_t)high << 32) | low;
}

// Linux gives tiles to a process that asks for them (arch_prctl, ARCH_REQ_XCOMP_PERM).
static int may_use_tiles(void) { return !syscall(SYS_arch_prctl, 0x1023, 18); }

static struct Features detect(void) {
  struct Features found = {0};
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return found;
  uint64_t states = enabled_states();
  int ymm = (states & 0x6) == 0x6, zmm = ymm && (states & 0xe0) == 0xe0;
  found.fma = ymm && (c >> 12 & 1);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  unsigned leaves = a;
  found.avx2 = ymm && (b >> 5 & 1);
  found.avx512f = zmm && (b >> 16 & 1);
  found.avx512bw = zmm && (b >> 30 & 1);
  found.avx512_vnni = zmm && (c >> 11 & 1);
  int tiles = (states & 0x60000) == 0x60000 && (d >> 24 & 1) && may_use_tiles();
  found.amx_bf16 = tiles && (d >> 22 & 1);
  found.amx_int8 = tiles && (d >> 25 & 1);
  if (leaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    found.avx_vnni = ymm && (a >> 4 & 1);
    found.avx512_bf16 = zmm && (a >> 5 & 1);
  }
  return found;
}

struct Instruction {
  const char* precision;
  const char* name;
  int supported;
  Kernel kernel;
  double operations;  // of one instruction or group
};

static void print_operations(struct Features cpu, int threads) {
  const struct Instruction all[] = {
      {"fp32", "AVX2", cpu.avx2 && cpu.fma, fma_256, 2.0 * 8},
      {"fp32", "AVX-512", cpu.avx512f, fma_512, 2.0 * 16},
      {"bf16", "AVX-512", cpu.avx512_bf16, bf16_512, 2.0 * 32},
      {"bf16", "AMX", cpu.amx_bf16, amx_bf16, 2.0 * 16 * 16 * 32},
      {"int8", "AVX2", cpu.avx2, madd_256, 2.0 * 32},
      {"int8", "AVX-512", cpu.avx512bw, madd_512, 2.0 * 64},
      {"int8", "AVX-VNNI", cpu.avx_vnni, vnni_256, 2.0 * 32},
      {"int8", "AVX-512 VNNI", cpu.avx512_vnni, vnni_512, 2.0 * 64},
      {"int8", "AMX", cpu.amx_int8, amx_int8, 2.0 * 16 * 16 * 64},
  };
  const size_t rounds = 2000, count = sizeof all / sizeof *all;
  const char* precision = "";
  static char* no_data[kMaxThreads];
  printf("{\"operations_per_second\": {");
  for (size_t i = 0; i < count; ++i) {
    if (!all[i].supported) continue;
    int same = !strcmp(precision, all[i].precision);
    if (!same) printf("%s\"%s\": {", *precision ? "}, " : "", all[i].precision);
    double work = all[i].operations * kAccumulators * (double)rounds;
    struct Task task = {.kernel = all[i].kernel, .rounds = rounds, .segments = 1};
    double rate = best_rate(task, no_data, work, threads);
    printf("%s\"%s\": %.6g", same ? ", " : "", all[i].name, rate);
    precision = all[i].precision;
  }
  printf("%s}, ", *precision ? "}" : "");
}

static void print_bytes(struct Features cpu, int threads) {
  const size_t largest = (size_t)1 << 30, smallest = (size_t)1 << 20;
  static char* data[kMaxThreads];
  size_t room = largest / (size_t)threads + (1 << 20);
  for (int i = 0; i < threads; ++i) {
    data[i] = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data[i] == MAP_FAILED) exit(2);
    madvise(data[i], room, MADV_HUGEPAGE);
    memset(data[i], 1, room);
  }
  printf("\"bytes_per_second\": {");
  for (size_t size = smallest; size <= largest; size *= 4) {
    size_t segment = size / (size_t)threads;
    size_t segments = (segment + kSegmentBytes - 1) / kSegmentBytes;
    size_t rounds = segment / segments / kBlockBytes;
    const struct {
      int supported;
      Kernel kernel;
    } all[] = {{1, read_256}, {1, prefetch_256}, {cpu.avx512f, read_512}, {cpu.avx512f, prefetch_512}};
    double best = 0, work = (double)(rounds * kBlockBytes);
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
      if (!all[i].supported) continue;
      struct Task task = {.kernel = all[i].kernel, .rounds = rounds, .segments = segments};
      double rate = best_rate(task, data, work, threads);
      if (rate > best) best = rate;
    }
    printf("%s\"%zu\": %.6g", size == smallest ? "" : ", ", size, best);
  }
  printf("}}\n");
}

int main(int count, char** arguments) {
  int threads = count == 2 ? atoi(arguments[1]) : 0;
  struct Features cpu = detect();
  if (threads < 1 || threads > kMaxThreads || !cpu.avx2) {
    fprintf(stderr, "usage: peak THREADS, on a processor with AVX2\n");
    return 1;
  }
  print_operations(cpu, threads);
  print_bytes(cpu, threads);
  return 0;
}
