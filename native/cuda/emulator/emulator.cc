#include "emulator.h"

#include <stdlib.h>
#include <string.h>

#include "../device/thread.h"

// Bounds of the section that holds SHARED memory; the linker defines them.
extern "C" char __start_shared_memory[], __stop_shared_memory[];

// Pushes the callee-saved registers, stores the stack pointer in `*stored`, and resumes the stack
// `next`. Needs no system call, unlike swapcontext(). Source: System V ABI, AMD64 Supplement.
extern "C" void switch_stack(char** stored, char* next);
asm(".text\n"
    ".local switch_stack\n"
    "switch_stack:\n"
    "  push %rbp\n"
    "  push %rbx\n"
    "  push %r12\n"
    "  push %r13\n"
    "  push %r14\n"
    "  push %r15\n"
    "  mov %rsp, (%rdi)\n"
    "  mov %rsi, %rsp\n"
    "  pop %r15\n"
    "  pop %r14\n"
    "  pop %r13\n"
    "  pop %r12\n"
    "  pop %rbx\n"
    "  pop %rbp\n"
    "  ret\n");

namespace emulator {
namespace {

constexpr int kWarp = 32;
constexpr long kStackBytes = 64 * 1024;
constexpr int kNumKept = 6;       // callee-saved registers
constexpr long kAlignment = 16;  // of the stack at a call
constexpr int kMaxCopies = 64, kCopyBytes = 16;
constexpr int kNotANumber = 0xff;  // byte that fills shared memory: floats of it are NaN

enum class State { kReady, kAtWarp, kAtBlock, kEnded };

// Operations that all lanes of a warp make together.
enum class Operation { kShuffle, kMmaFp16, kMmaBf16 };

struct PendingCopy {
  void* to;
  const void* from;
  bool is_needed;
  int group;
};

struct Thread {
  char* stack;  // stack pointer while the thread does not run
  State state;
  Operation operation;
  unsigned bits;  // argument of shuffle_xor() and shuffle_idx(), then the result
  int distance;   // argument of shuffle_xor(); 0: shuffle_idx()
  int source;     // argument of shuffle_idx()
  unsigned a[4], b[2];  // fragments of mma()
  float c[4];
  PendingCopy copies[kMaxCopies];
  int num_copies, group;
};

Thread threads[kMaxThreads];
char* scheduler;
char* stacks = nullptr;
int running, size;
const char* misuse;  // null, or the thread's use of an intrinsic that CUDA leaves undefined
long current_block;
Kernel kernel;
const void* arguments;

void wait(State state) {
  Thread& thread = threads[running];
  thread.state = state;
  switch_stack(&thread.stack, scheduler);
}

void run_thread() {
  kernel(arguments);
  wait(State::kEnded);
}

// Prepares each thread's stack so that switch_stack() starts run_thread() on it.
void start_threads() {
  for (int i = 0; i < size; i++) {
    char* called = stacks + (i + 1) * kStackBytes - kAlignment;
    *reinterpret_cast<void (**)()>(called) = run_thread;
    threads[i].stack = called - kNumKept * static_cast<long>(sizeof(void*));
    threads[i].state = State::kReady;
    threads[i].num_copies = threads[i].group = 0;
  }
}

// A random number below `end`, by a linear congruential generator.
int random_below(int end) {
  static unsigned random = 1;
  random = random * 1664525u + 1013904223u;
  return static_cast<int>((random >> 8) % static_cast<unsigned>(end));
}

// Fills `numbers` with a random permutation of 0 .. count - 1 (Fisher and Yates).
void shuffle(int* numbers, int count) {
  for (int i = 0; i < count; i++) numbers[i] = i;
  for (int i = count - 1; i > 0; i--) {
    const int other = random_below(i + 1);
    const int held = numbers[i];
    numbers[i] = numbers[other];
    numbers[other] = held;
  }
}

int count(const Thread* first, int number, State state) {
  int found = 0;
  for (int i = 0; i < number; i++) found += first[i].state == state;
  return found;
}

// Makes the shuffle for which all lanes of a warp wait.
const char* run_shuffle(Thread* lanes) {
  unsigned bits[kWarp];
  for (int lane = 0; lane < kWarp; lane++) {
    if (lanes[lane].distance != lanes[0].distance) return "lanes ask for several distances";
    bits[lane] = lanes[lane].bits;
  }
  for (int lane = 0; lane < kWarp; lane++) {
    const int distance = lanes[lane].distance;
    lanes[lane].bits = bits[distance ? lane ^ distance : lanes[lane].source];
  }
  return nullptr;
}

void make(const PendingCopy& copy) {
  if (copy.is_needed) {
    memcpy(copy.to, copy.from, kCopyBytes);
  } else {
    memset(copy.to, 0, kCopyBytes);
  }
}

float element(unsigned word, int half, bool is_bfloat) {
  const auto bits = static_cast<device::uint16>(word >> (16 * half));
  return is_bfloat ? device::BFloat::widen({bits})
                   : device::Half::widen(__builtin_bit_cast(device::Half, bits));
}

// Makes the mma of a warp from its lanes' fragments. Source: PTX ISA, "Matrix Fragments for
// mma.m16n8k16 with floating point type".
void run_mma(Thread* lanes, bool is_bfloat) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kWarp; lane++) {
    const int group_id = lane / 4, thread_in_group = lane % 4;
    for (int i = 0; i < 8; i++) {  // a0 to a7
      const int row = i / 2 % 2 == 0 ? group_id : group_id + 8;
      const int column = thread_in_group * 2 + i % 2 + (i < 4 ? 0 : 8);
      a[row][column] = element(lanes[lane].a[i / 2], i % 2, is_bfloat);
    }
    for (int i = 0; i < 4; i++) {  // b0 to b3
      const int row = thread_in_group * 2 + i % 2 + (i < 2 ? 0 : 8);
      b[row][group_id] = element(lanes[lane].b[i / 2], i % 2, is_bfloat);
    }
  }
  for (int lane = 0; lane < kWarp; lane++) {
    for (int i = 0; i < 4; i++) {  // c0 to c3
      const int row = i < 2 ? lane / 4 : lane / 4 + 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; k++) lanes[lane].c[i] += a[row][k] * b[k][column];
    }
  }
}

// Makes the operation for which all lanes of a warp wait.
const char* run_operation(Thread* lanes) {
  const Operation operation = lanes[0].operation;
  for (int lane = 0; lane < kWarp; lane++) {
    if (lanes[lane].operation != operation) return "lanes ask for several operations";
    lanes[lane].state = State::kReady;
  }
  if (operation == Operation::kShuffle) return run_shuffle(lanes);
  run_mma(lanes, operation == Operation::kMmaBf16);
  return nullptr;
}

// Runs a warp until all of its threads have ended or wait at a block barrier.
const char* run_warp(int first) {
  Thread* lanes = threads + first;
  while (count(lanes, kWarp, State::kReady)) {
    int order[kWarp];
    shuffle(order, kWarp);
    for (int lane : order) {
      running = first + lane;
      if (lanes[lane].state == State::kReady) switch_stack(&scheduler, lanes[lane].stack);
    }
    const int num_waiting = count(lanes, kWarp, State::kAtWarp);
    if (num_waiting == 0) break;
    if (num_waiting < kWarp) return "a lane does not take part in an exchange";
    const char* failure = run_operation(lanes);
    if (failure) return failure;
  }
  return nullptr;
}

const char* run_block() {
  memset(__start_shared_memory, kNotANumber,
         static_cast<size_t>(__stop_shared_memory - __start_shared_memory));
  start_threads();
  while (count(threads, size, State::kEnded) < size) {
    int order[kMaxThreads / kWarp];
    shuffle(order, size / kWarp);
    for (int i = 0; i < size / kWarp; i++) {
      const char* failure = run_warp(order[i] * kWarp);
      if (failure) return failure;
    }
    for (int i = 0; i < size; i++) {
      if (threads[i].state == State::kAtBlock) threads[i].state = State::kReady;
    }
  }
  return nullptr;
}

}  // namespace

void expect_threads(int count) {
  if (size > count) misuse = "a block has more threads than its kernel expects";
}
int thread() { return running; }
int num_threads() { return size; }
int block() { return static_cast<int>(current_block); }

void wait_for_block() { wait(State::kAtBlock); }

unsigned shuffle_xor(unsigned bits, int distance) {
  threads[running].operation = Operation::kShuffle;
  threads[running].bits = bits;
  threads[running].distance = distance;
  wait(State::kAtWarp);
  return threads[running].bits;
}

unsigned shuffle_idx(unsigned bits, int lane) {
  threads[running].source = lane;
  return shuffle_xor(bits, 0);
}

void start_copy(void* to, const void* from, bool is_needed) {
  Thread& thread = threads[running];
  if (thread.num_copies == kMaxCopies) {
    misuse = "a thread has too many copies under way";
    return;
  }
  const auto addresses = reinterpret_cast<unsigned long>(to) | reinterpret_cast<unsigned long>(from);
  if (addresses % kCopyBytes) misuse = "a copy is not aligned";
  const PendingCopy copy = {to, from, is_needed, thread.group};
  if (random_below(2)) {
    make(copy);
  } else {
    thread.copies[thread.num_copies++] = copy;
  }
}

void end_copies() { threads[running].group++; }

void wait_for_earlier_copies() {
  Thread& thread = threads[running];
  int num_left = 0;
  for (int i = 0; i < thread.num_copies; i++) {
    const PendingCopy& copy = thread.copies[i];
    if (copy.group >= thread.group - 1) {
      thread.copies[num_left++] = copy;
    } else {
      make(copy);
    }
  }
  thread.num_copies = num_left;
}

void mma(bool is_bfloat, float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Thread& thread = threads[running];
  thread.operation = is_bfloat ? Operation::kMmaBf16 : Operation::kMmaFp16;
  memcpy(thread.a, a, sizeof a);
  memcpy(thread.b, b, sizeof b);
  memcpy(thread.c, c, sizeof c);
  wait(State::kAtWarp);
  memcpy(c, thread.c, sizeof c);
}

const char* run(Kernel run_kernel, long num_blocks, int num_threads, const void* given) {
  if (num_threads <= 0 || num_threads > kMaxThreads || num_threads % kWarp) {
    return "a block has an unsupported number of threads";
  }
  if (!stacks) stacks = static_cast<char*>(aligned_alloc(kAlignment, kMaxThreads * kStackBytes));
  if (!stacks) return "out of memory";
  kernel = run_kernel;
  arguments = given;
  size = num_threads;
  misuse = nullptr;
  for (current_block = 0; current_block < num_blocks; current_block++) {
    const char* failure = run_block();
    if (failure) return failure;
  }
  return misuse;
}

}  // namespace emulator
