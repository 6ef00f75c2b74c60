// The RotaryEmbedding operator.
// Source: onnxruntime/contrib_ops/cuda/bert/rotary_embedding_impl.cu.

#include "attention.h"

namespace stand_in {
namespace {

// Strides between texts, heads and tokens.
struct Strides {
  int text, head, token, unused;
};

}  // namespace

// A thread block for each token, text and head. Parameters: output, input, cosines and sines
// [positions, rotated / 2], positions, unused, length, heads, head size, rotated elements, unused,
// format of positions (1: one per token; 0: that of the first token), whether neighbours form a
// pair, strides of input and output.
Computation MakeRotary(const Launch& launch) {
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [to = launch.Get<T*>(0), from = launch.Get<const T*>(1),
            cosines = launch.Get<const T*>(2), sines = launch.Get<const T*>(3),
            positions = launch.Get<const int64_t*>(4), length = launch.Get<int>(6),
            size = launch.Get<int>(8), rotated = launch.Get<int>(9),
            has_each = launch.Get<int>(11) == 1, is_interleaved = launch.Get<bool>(12),
            from_strides = launch.Get<Strides>(13), to_strides = launch.Get<Strides>(14),
            grid = launch.grid] {
      for (int64_t text = 0; text < grid.y; ++text) {
        for (int64_t token = 0; token < grid.x; ++token) {
          const int64_t position =
              has_each ? positions[text * length + token] : positions[0] + token;
          const int64_t angle = position * (rotated / 2);
          for (int64_t head = 0; head < grid.z; ++head) {
            const auto place = [&](const Strides& strides) {
              return text * strides.text + token * strides.token + head * strides.head;
            };
            std::vector<float> values = FloatsOf(from + place(from_strides), size, 1, size);
            Rotate(cosines + angle, sines + angle, rotated / 2, is_interleaved, &values);
            Store(values, to + place(to_strides));
          }
        }
      }
    };
  });
  return made;
}

}  // namespace stand_in
