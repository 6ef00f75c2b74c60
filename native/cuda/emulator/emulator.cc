#include "emulator.h"

#include <stdlib.h>
#include <string.h>

#include "../device/thread.h"

// Where the linker puts SHARED memory.
extern "C" char __start_shared_memory[], __stop_shared_memory[];

// Stores the registers that a function keeps, and where they are; continues what `next` stored.
// Unlike swapcontext(), without a call of the system. Source: System V ABI, AMD64 Supplement.
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
constexpr int kNumKept = 6;       // registers
constexpr long kAlignment = 16;  // of a stack when a function is called
constexpr int kMaxCopies = 64, kCopyBytes = 16;
constexpr int kNotANumber = 0xff;  // the byte; floats of it are NaN

enum class State { kReady, kAtWarp, kAtBlock, kEnded };

// What all lanes of a warp do at once.
enum class Operation { kExchange, kMultiplyFp16, kMultiplyBf16 };

struct PendingCopy {
  void* to;
  const void* from;
  bool is_needed;
  int group;
};

struct Thread {
  char* stack;  // while it does not run
  State state;
  Operation operation;
  unsigned bits;  // given to from_lane() and of_lane()
  int distance;   // of from_lane(); 0: of_lane()
  int source;     // the lane of of_lane()
  unsigned left[4], right[2];  // given to multiply_add()
  float sums[4];
  PendingCopy copies[kMaxCopies];
  int num_copies, group;
};

Thread threads[kMaxThreads];
char* scheduler;
char* stacks = nullptr;
int running, size;
const char* misuse;  // null, or what a thread did that a device does not allow
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

// Stacks that look as if each thread had been called and had stored its registers.
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

// Numbers in another order (Fisher and Yates).
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

// Exchanges the bits of the lanes of a warp.
const char* exchange(Thread* lanes) {
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

// Multiplies the matrices of a warp, whose parts the lanes have as the PTX ISA defines: "Matrix
// Fragments for mma.m16n8k16 with floating point type".
void multiply(Thread* lanes, bool is_bfloat) {
  float left[16][16], right[16][8];  // A and B
  for (int lane = 0; lane < kWarp; lane++) {
    const int group = lane / 4, in_group = lane % 4;
    for (int i = 0; i < 8; i++) {  // a0 to a7
      const int row = i / 2 % 2 == 0 ? group : group + 8;
      const int column = in_group * 2 + i % 2 + (i < 4 ? 0 : 8);
      left[row][column] = element(lanes[lane].left[i / 2], i % 2, is_bfloat);
    }
    for (int i = 0; i < 4; i++) {  // b0 to b3
      const int row = in_group * 2 + i % 2 + (i < 2 ? 0 : 8);
      right[row][group] = element(lanes[lane].right[i / 2], i % 2, is_bfloat);
    }
  }
  for (int lane = 0; lane < kWarp; lane++) {
    for (int i = 0; i < 4; i++) {  // c0 to c3
      const int row = i < 2 ? lane / 4 : lane / 4 + 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; k++) lanes[lane].sums[i] += left[row][k] * right[k][column];
    }
  }
}

// What the lanes of a warp, all of which wait for it, do at once.
const char* run_operation(Thread* lanes) {
  const Operation operation = lanes[0].operation;
  for (int lane = 0; lane < kWarp; lane++) {
    if (lanes[lane].operation != operation) return "lanes ask for several operations";
    lanes[lane].state = State::kReady;
  }
  if (operation == Operation::kExchange) return exchange(lanes);
  multiply(lanes, operation == Operation::kMultiplyBf16);
  return nullptr;
}

// Runs a warp until all of its threads have ended or wait for the block.
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

unsigned from_lane(unsigned bits, int distance) {
  threads[running].operation = Operation::kExchange;
  threads[running].bits = bits;
  threads[running].distance = distance;
  wait(State::kAtWarp);
  return threads[running].bits;
}

unsigned of_lane(unsigned bits, int lane) {
  threads[running].source = lane;
  return from_lane(bits, 0);
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

void multiply_add(bool is_bfloat, float (&sums)[4], const unsigned (&left)[4],
                  const unsigned (&right)[2]) {
  Thread& thread = threads[running];
  thread.operation = is_bfloat ? Operation::kMultiplyBf16 : Operation::kMultiplyFp16;
  memcpy(thread.left, left, sizeof left);
  memcpy(thread.right, right, sizeof right);
  memcpy(thread.sums, sums, sizeof sums);
  wait(State::kAtWarp);
  memcpy(sums, thread.sums, sizeof sums);
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
