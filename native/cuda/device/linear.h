// A linear layer for few rows, y = act(x W^T + bias) in 16-bit floats, optionally after a residual
// addition and RMSNorm of x. It is bound by the bandwidth of the weights: each is read once,
// straight into registers, as early as possible.
#pragma once

#include "activation.h"
#include "arguments.h"
#include "thread.h"

namespace device {

// A block computes 16 features of all rows. `in` is divided into steps of 32 columns, and the steps
// into chunks. Each warp has consecutive steps of every chunk. It loads its weights of the next
// chunk while it multiplies those of this one.
constexpr int kLinearWarps = 8, kLinearThreads = kLinearWarps * kWarp;
constexpr int kFeatures = 16, kTileRows = 8;
constexpr int kStep = 32, kDepth = 8, kChunk = kLinearWarps * kDepth;

// The steps of one warp.
struct Steps {
  int num_chunks, last_size, count;  // last_size: steps of all warps in the last chunk

  static Steps of(int in) {
    const int num = in / kStep, num_chunks = (num + kChunk - 1) / kChunk;
    const int last_size = num - (num_chunks - 1) * kChunk;
    const int in_last = share(last_size, warp() + 1) - share(last_size, warp());
    return {num_chunks, last_size, (num_chunks - 1) * kDepth + in_last};
  }
  static int share(int size, int warps) { return size * warps / kLinearWarps; }

  bool has(int chunk, int step) const { return chunk * kDepth + step < count; }
  // The warp's first step in a chunk, counted from the start of the chunk.
  int first_in(int chunk) const {
    return share(chunk < num_chunks - 1 ? kChunk : last_size, warp());
  }
  int column(int chunk, int step) const {
    return (chunk * kChunk + first_in(chunk) + step) * kStep;
  }
};

// x + residual, rounded to T.
template <typename T>
inline Wide<T> sum_of(Words x, const T* residual, Words added) {
  Wide<T> sum = Wide<T>::of(x);
  if (residual) sum.add(Wide<T>::of(added));
  return sum;
}

// RMSNorm of up to 8 rows. The warps are divided among the rows; a thread has every `stride()`th
// vector of its row.
template <typename T>
struct NormalizedRows {
  // Vectors of a row that a thread loads at once. With more, registers limit a multiprocessor to
  // one block.
  static constexpr int kBatch = 2;
  static constexpr int kChunkVectors = kChunk * kStep / kWide;
  // Pitch of a chunk's rows in shared memory: an odd number of steps, so that reads have no bank
  // conflicts.
  static constexpr int kPitch = (kChunk + 1) * kStep;

  const LinearArguments<T>& a;
  T* rows;    // [kTileRows, kPitch]
  T* scales;  // [kChunk * kStep]
  int warps, row, first;
  float factor;

  NormalizedRows(const LinearArguments<T>& arguments, T* shared_rows, T* shared_scales)
      : a(arguments), rows(shared_rows), scales(shared_scales) {
    warps = kLinearWarps;
    while (warps * a.num_rows > kLinearWarps) warps /= 2;
    row = warp() / warps;
    first = warp() % warps * kWarp + lane();
  }

  int stride() const { return warps * kWarp; }
  bool has(int vector) const { return row < a.num_rows && vector < a.in / kWide; }

  // Copies the scales of a chunk to shared memory. They are weights: no kernel writes them.
  void load_scales(int chunk) {
    const int vector = chunk * kChunkVectors + thread();
    if (vector >= a.in / kWide) return;
    *reinterpret_cast<Words*>(scales + thread() * kWide) =
        *reinterpret_cast<const Words*>(a.scale + vector * kWide);
  }

  // Calls do_each(vector, x + residual) for the thread's vectors in [begin, end).
  template <typename F>
  void for_each(int begin, int end, F do_each) {
    const T* x = a.x + static_cast<long>(row) * a.in;
    const T* residual = a.residual ? a.residual + static_cast<long>(row) * a.in : x;
    for (int vector = begin + first; vector < end; vector += kBatch * stride()) {
      Words values[kBatch], added[kBatch];
      UNROLLED
      for (int i = 0; i < kBatch; i++) {
        const int at = vector + i * stride();
        const bool is_needed = at < end && has(at);
        values[i] = load_if(is_needed, x + at * kWide);
        added[i] = load_if(is_needed && a.residual, residual + at * kWide);
      }
      UNROLLED
      for (int i = 0; i < kBatch; i++) {
        const int at = vector + i * stride();
        if (at < end && has(at)) do_each(at, sum_of(values[i], a.residual, added[i]));
      }
    }
  }

  // Computes the RMSNorm factor of the thread's row. The blocks share the writing of a.sum.
  void compute_factor() {
    SHARED float squares[kLinearWarps];
    float square = 0.f;
    for_each(0, a.in / kWide, [&](int vector, const Wide<T>& sum) {
      UNROLLED
      for (int i = 0; i < kWide; i++) square += sum.values[i] * sum.values[i];
      if (a.sum && (vector / kWarp * kTileRows + row) % a.num_blocks == block()) {
        sum.store(a.sum + static_cast<long>(row) * a.in + vector * kWide);
      }
    });
    for (int distance = kWarp / 2; distance; distance /= 2) square += shuffle_xor(square, distance);
    if (lane() == 0) squares[warp()] = square;
    wait_for_block();
    square = 0.f;
    for (int w = 0; w < warps; w++) square += squares[row * warps + w];
    factor = rsqrt(square / a.in + a.epsilon);
  }

  // Writes the normalized columns of a chunk to shared memory.
  void normalize(int chunk) {
    if (chunk > 0) {
      load_scales(chunk);
      wait_for_block();  // for the scales, and for the reads of the last chunk
    }
    const int begin = chunk * kChunkVectors;
    for_each(begin, begin + kChunkVectors, [&](int vector, Wide<T> value) {
      const int column = (vector - begin) * kWide;
      const Wide<T> scale = Wide<T>::load(scales + column);
      UNROLLED
      for (int i = 0; i < kWide; i++) value.values[i] = value.values[i] * factor * scale.values[i];
      value.store(rows + row * kPitch + column);
    });
    wait_for_block();
  }
};

// Adds the partial sums of the warps and writes the block's features.
template <typename T, int Tiles>
inline void write_features(const LinearArguments<T>& a, const float (&sums)[Tiles][4]) {
  constexpr int kPitch = kFeatures + 4;  // avoids bank conflicts of the writes
  SHARED float partial[kLinearWarps][Tiles * kTileRows][kPitch];
  UNROLLED
  for (int tile = 0; tile < Tiles; tile++) {
    UNROLLED
    for (int i = 0; i < 4; i++) {
      const int row = tile * kTileRows + lane() % 4 * 2 + i % 2;
      partial[warp()][row][lane() / 4 + i / 2 * 8] = sums[tile][i];
    }
  }
  const int width = a.is_gated ? kFeatures / 2 : kFeatures;
  const int row = thread() / width, feature = thread() % width, column = block() * width + feature;
  const float bias = a.bias ? T::widen(a.bias[column]) : 0.f;
  const float up_bias = a.bias && a.is_gated ? T::widen(a.bias[a.out + column]) : 0.f;
  wait_for_block();
  if (row >= a.num_rows) return;
  float y = 0.f, up = 0.f;
  UNROLLED
  for (int w = 0; w < kLinearWarps; w++) y += partial[w][row][feature];
  y += bias;
  if (a.activation != kNone) y = activated(y, a.activation);
  if (a.is_gated) {
    UNROLLED
    for (int w = 0; w < kLinearWarps; w++) up += partial[w][row][feature + width];
    y *= up + up_bias;
  }
  a.y[static_cast<long>(row) * a.out + column] = T::narrow(y);
}

// The weights are the A operand of mma() and the rows of x the B operand. A lane loads 8
// consecutive columns of each, which serve as the fragments of two mma: the columns are permuted
// along k, alike in A and B.
template <typename T, int Tiles, bool IsNormed>
inline void multiply_rows(const LinearArguments<T>& a) {
  expect_threads<kLinearThreads, Tiles == 1 ? 2 : 1>();
  const Steps steps = Steps::of(a.in);
  const int group_id = lane() / 4, column = lane() % 4 * kWide;
  const int width = a.is_gated ? kFeatures / 2 : kFeatures;
  const long other = static_cast<long>(a.is_gated ? a.out : kFeatures / 2) * a.in;
  const T* weight = a.weight + (static_cast<long>(block()) * width + group_id) * a.in + column;
  Words low[kDepth], high[kDepth];  // of features group_id and group_id + 8 of the block
  UNROLLED
  for (int step = 0; step < kDepth; step++) {
    const T* from = weight + steps.column(0, step);
    low[step] = load_constant_if(steps.has(0, step), from);
    high[step] = load_constant_if(steps.has(0, step), from + other);
  }

  constexpr int kAhead = kDepth / Tiles;  // steps whose rows of x are loaded ahead
  Words b_fragments[kAhead][Tiles];
  const auto load_rows = [&](int chunk, int step) {
    UNROLLED
    for (int tile = 0; tile < Tiles; tile++) {
      const int row = tile * kTileRows + group_id;
      const T* x = a.x + static_cast<long>(row) * a.in + column;
      b_fragments[step % kAhead][tile] =
          load_if(row < a.num_rows && steps.has(chunk, step), x + steps.column(chunk, step));
    }
  };
  SHARED Words rows[IsNormed ? kTileRows * NormalizedRows<T>::kPitch / kWide : 1];
  SHARED Words scales[IsNormed ? NormalizedRows<T>::kChunkVectors : 1];
  NormalizedRows<T> norm(a, (T*)rows, (T*)scales);
  if constexpr (IsNormed) norm.load_scales(0);
  let_next_start();
  wait_for_previous();
  if constexpr (IsNormed) {
    norm.compute_factor();
  } else {
    UNROLLED
    for (int step = 0; step < kAhead; step++) load_rows(0, step);
  }

  float sums[Tiles][4] = {}, others[Tiles][4] = {};
  for (int chunk = 0; chunk < steps.num_chunks; chunk++) {
    if constexpr (IsNormed) norm.normalize(chunk);
    const int first = group_id * norm.kPitch + steps.first_in(chunk) * kStep + column;
    UNROLLED
    for (int step = 0; step < kDepth; step++) {
      if (!steps.has(chunk, step)) break;
      if constexpr (IsNormed) b_fragments[step][0] = rows[(first + step * kStep) / kWide];
      UNROLLED
      for (int tile = 0; tile < Tiles; tile++) {
        const Words x = b_fragments[step % kAhead][tile], &l = low[step], &h = high[step];
        mma<T::kIsBFloat>(sums[tile], {l[0], h[0], l[1], h[1]}, {x[0], x[1]});
        mma<T::kIsBFloat>(others[tile], {l[2], h[2], l[3], h[3]}, {x[2], x[3]});
      }
      if (chunk == steps.num_chunks - 1 && kAhead == kDepth) continue;
      const T* from = weight + steps.column(chunk + 1, step);
      low[step] = load_constant_if(steps.has(chunk + 1, step), from);
      high[step] = load_constant_if(steps.has(chunk + 1, step), from + other);
      if constexpr (!IsNormed) {
        const int next = step + kAhead;
        load_rows(chunk + next / kDepth, next % kDepth);
      }
    }
  }
  UNROLLED
  for (int tile = 0; tile < Tiles; tile++) {
    UNROLLED
    for (int i = 0; i < 4; i++) sums[tile][i] += others[tile][i];
  }
  write_features<T, Tiles>(a, sums);
}

}  // namespace device
