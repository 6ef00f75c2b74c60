// Preparations of GroupQueryAttention: lengths, and new keys and values in the cache.
// Source: onnxruntime/contrib_ops/cuda/bert/{group_query_attention_impl.cu,
// group_query_attention_qkv.cuh,group_query_attention_qdq.cuh}.

#include <algorithm>

#include <math.h>

#include "attention.h"

namespace stand_in {
namespace {

// From ONNX Runtime's KVQuantizationType.
constexpr int kPerChannel = 2;

struct Scales {
  const float* values;
  bool is_per_channel;  // [heads, head size]

  float Of(int64_t channel) const { return values[is_per_channel ? channel : 0]; }
};

int8_t Quantized(float value, float scale) {
  const float scaled = scale == 0 ? 0 : value * (1 / scale);
  return static_cast<int8_t>(std::clamp(rintf(scaled), -128.0f, 127.0f));
}

// [batch, heads, length, size], or [batch, length, heads, size]
struct CacheShape {
  int64_t num_heads, length, size;
  bool is_by_head;

  int64_t Place(int64_t batch, int64_t head, int64_t position) const {
    const int64_t row = is_by_head ? (batch * num_heads + head) * length + position
                                   : (batch * length + position) * num_heads + head;
    return row * size;
  }
};

// Applies rotary positions to queries and keys, and writes keys and values to the cache.
template <typename T, typename U>
struct Append {
  const T *packed, *query, *key, *value;
  T* query_to;
  U *key_to, *value_to;
  Scales key_scales, value_scales;
  int64_t num_heads, packed_size, num_positions;
  CacheShape cache;
  const int *past_lengths, *cache_lengths;
  const T *cosines, *sines;  // [positions, rotary size / 2]
  int64_t rotary_size;
  const int64_t* positions;  // [batch, length]; null: they follow the past
  bool is_interleaved;
  int64_t length, batch_size;

  void operator()() const {
    for (int64_t batch = 0; batch < batch_size; ++batch) {
      for (int64_t row = 0; row < length; ++row) Token(batch, row);
    }
  }

 private:
  void Token(int64_t batch, int64_t row) const {
    const int64_t token = batch * length + row, place = cache_lengths[batch] + row;
    const int64_t size = cache.size, num_key_heads = cache.num_heads;
    for (int64_t head = 0; head < num_heads + 2 * num_key_heads; ++head) {
      const bool is_query = head < num_heads;
      const bool is_key = !is_query && head < num_heads + num_key_heads;
      const int64_t own = is_query ? head : (head - num_heads) % num_key_heads;
      const T* separate = is_query ? query : is_key ? key : value;
      const int64_t count = is_query ? num_heads : num_key_heads;
      const T* from = packed != nullptr ? packed + token * packed_size + head * size
                                        : separate + (token * count + own) * size;
      std::vector<float> values = FloatsOf(from, 0, 1, size);
      if (is_query || is_key) Rotate(batch, row, &values);
      if (is_query) {
        if (query_to != nullptr) Store(values, query_to + (token * num_heads + head) * size);
      } else if (U* to = is_key ? key_to : value_to; to != nullptr && place < cache.length) {
        Write(values, is_key ? key_scales : value_scales, own, to + cache.Place(batch, own, place));
      }
    }
  }

  void Rotate(int64_t batch, int64_t row, std::vector<float>* values) const {
    const int64_t position =
        positions != nullptr ? positions[batch * length + row] : past_lengths[batch] + row;
    if (rotary_size == 0 || position < 0 || position >= num_positions) return;
    const int64_t num_pairs = rotary_size / 2;
    stand_in::Rotate(cosines + position * num_pairs, sines + position * num_pairs, num_pairs,
                     is_interleaved, values);
  }

  void Write(const std::vector<float>& values, const Scales& scales, int64_t head, U* to) const {
    if constexpr (sizeof(U) == sizeof(int8_t)) {
      for (int64_t i = 0; i < cache.size; ++i) {
        const auto value = static_cast<float>(static_cast<T>(values[static_cast<size_t>(i)]));
        to[i] = Quantized(value, scales.Of(head * cache.size + i));
      }
    } else {
      Store(values, to);
    }
  }
};

template <typename T, typename U>
Computation AppendOf(const Launch& launch) {
  const bool is_per_channel = launch.Get<bool>(24);
  return Append<T, U>{
      .packed = launch.Get<const T*>(0),
      .query = launch.Get<const T*>(1),
      .key = launch.Get<const T*>(2),
      .value = launch.Get<const T*>(3),
      .query_to = launch.Get<T*>(4),
      .key_to = launch.Get<U*>(5),
      .value_to = launch.Get<U*>(6),
      .key_scales = {launch.Get<const float*>(7), is_per_channel},
      .value_scales = {launch.Get<const float*>(8), is_per_channel},
      .num_heads = launch.Integer(10),
      .packed_size = launch.Integer(13),
      .num_positions = launch.Integer(14),
      .cache = {launch.Integer(11), launch.Integer(15), launch.Integer(12), launch.Get<bool>(23)},
      .past_lengths = launch.Get<const int*>(16),
      .cache_lengths = launch.Get<const int*>(17),
      .cosines = launch.Get<const T*>(18),
      .sines = launch.Get<const T*>(19),
      .rotary_size = launch.Integer(20),
      .positions = launch.Get<const int64_t*>(21),
      .is_interleaved = launch.Get<bool>(22),
      .length = launch.grid.x,
      .batch_size = launch.grid.z,
  };
}

// Dequantizes a cache; the result is ordered by head.
template <typename T>
struct Dequantize {
  T* to;
  const int8_t* from;
  Scales scales;
  const int* lengths;  // null: all positions
  CacheShape cache;    // shape of `from`
  int64_t batch_size;

  // Attention kernels read whole blocks of keys, up to the end of the last one.
  static constexpr int64_t kBlock = 128;

  void operator()() const {
    for (int64_t batch = 0; batch < batch_size; ++batch) {
      int64_t length = cache.length;
      if (lengths != nullptr) {
        length = std::min(length, (lengths[batch] + kBlock - 1) / kBlock * kBlock);
      }
      for (int64_t head = 0; head < cache.num_heads; ++head) {
        for (int64_t row = 0; row < length; ++row) Row(batch, head, row);
      }
    }
  }

 private:
  void Row(int64_t batch, int64_t head, int64_t row) const {
    const int8_t* first = from + cache.Place(batch, head, row);
    const int64_t place = ((batch * cache.num_heads + head) * cache.length + row) * cache.size;
    for (int64_t i = 0; i < cache.size; ++i) {
      to[place + i] = static_cast<T>(first[i] * scales.Of(head * cache.size + i));
    }
  }
};

template <typename T>
struct Quantize {
  int8_t* to;
  const T* from;
  Scales scales;
  const int *past_lengths, *lengths;  // keys before `past_lengths` are kept; null: 0
  CacheShape cache;                   // shape of `to`
  CacheShape given;                   // shape of `from`
  int64_t batch_size;

  void operator()() const {
    for (int64_t batch = 0; batch < batch_size; ++batch) {
      const int64_t first = past_lengths == nullptr ? 0 : past_lengths[batch];
      for (int64_t head = 0; head < cache.num_heads; ++head) {
        for (int64_t row = first; row < cache.length; ++row) Row(batch, head, row);
      }
    }
  }

 private:
  void Row(int64_t batch, int64_t head, int64_t row) const {
    int8_t* first = to + cache.Place(batch, head, row);
    const T* values = from + given.Place(batch, head, row);
    for (int64_t i = 0; i < cache.size; ++i) {
      first[i] = row < lengths[batch] ? Quantized(static_cast<float>(values[i]),
                                                  scales.Of(head * cache.size + i))
                                      : 0;
    }
  }
};

}  // namespace

// GetSequenceLengths(last positions, past lengths, lengths, padded lengths, -, -, -, batch size,
// number of new tokens, is first prompt, maximum length, ...)
Computation MakeSequenceLengths(const Launch& launch) {
  Computation made;
  const bool has_windowed_cache = launch.Get<int*>(4) != nullptr;
  if (has_windowed_cache) return made;
  made = [last = launch.Get<const int*>(0), past = launch.Get<int*>(1), total = launch.Get<int*>(2),
          padded = launch.Get<int*>(3), batch_size = launch.Get<int>(7),
          length = launch.Get<int>(8), is_first = launch.Get<bool>(9),
          longest = launch.Get<int>(10)] {
    for (int i = 0; i < batch_size; ++i) {
      total[i] = last[i] < 0 ? 1 : std::min(last[i], longest - 1) + 1;
      past[i] = is_first ? 0 : std::max(total[i] - length, 0);
      padded[i] = is_first ? length : 0;
    }
  };
  return made;
}

// UnpackRoPEAppend<T, U, bits, ...>(packed, query, key, value, query to, key to, value to, key
// scales, value scales, -, heads, key heads, head size, packed size, positions, cache length,
// past lengths, lengths of the cache, cosines, sines, rotary size, positions of tokens,
// is interleaved, is by head, is per channel, norms of queries and keys, epsilon)
Computation MakeAppend(const Launch& launch) {
  Computation made;
  const bool has_norms = launch.Get<void*>(25) != nullptr || launch.Get<void*>(26) != nullptr;
  // Cross-attention to an integer cache has no new keys; the kernel would read a null pointer
  // there.
  const bool has_keys = launch.Get<void*>(0) != nullptr || launch.Get<void*>(2) != nullptr;
  if (has_norms || !has_keys || launch.Get<void*>(9) != nullptr) return made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    if (launch.name.arguments[2] == "16") made = AppendOf<T, T>(launch);
    if (launch.name.arguments[1] == "signed char") made = AppendOf<T, int8_t>(launch);
  });
  return made;
}

// ConvertHeadSinkToFloatKernel<T>(from, to, count)
Computation MakeSinks(const Launch& launch) {
  Computation made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    made = [from = launch.Get<const T*>(0), to = launch.Get<float*>(1),
            count = launch.Integer(2)] {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
    };
  });
  return made;
}

// QuantizeKernel<T, U, float>(to, from, scales, past lengths, lengths, elements, given length,
// cache length, heads, head size, bits, type, is given by token)
Computation MakeQuantized(const Launch& launch) {
  Computation made;
  if (launch.name.arguments[1] != "signed char") return made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const int64_t length = launch.Integer(7), num_heads = launch.Integer(8);
    const int64_t size = launch.Integer(9);
    made = Quantize<T>{
        .to = launch.Get<int8_t*>(0),
        .from = launch.Get<const T*>(1),
        .scales = {launch.Get<const float*>(2), launch.Get<int>(11) == kPerChannel},
        .past_lengths = launch.Get<const int*>(3),
        .lengths = launch.Get<const int*>(4),
        .cache = {num_heads, length, size, true},
        .given = {num_heads, launch.Integer(6), size, !launch.Get<bool>(12)},
        .batch_size = launch.Integer(5) / (num_heads * length * size),
    };
  });
  return made;
}

// DequantizeKVVectorizedKernel<T, U, float, ...>(to, from, scales, lengths, heads, cache length,
// head size, type, is by token)
Computation MakeDequantized(const Launch& launch) {
  Computation made;
  if (launch.name.arguments[1] != "signed char") return made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const int64_t num_heads = launch.Integer(4);
    made = Dequantize<T>{
        .to = launch.Get<T*>(0),
        .from = launch.Get<const int8_t*>(1),
        .scales = {launch.Get<const float*>(2), launch.Get<int>(7) == kPerChannel},
        .lengths = launch.Get<const int*>(3),
        .cache = {num_heads, launch.Integer(5), launch.Integer(6), !launch.Get<bool>(8)},
        .batch_size = launch.grid.y / num_heads,
    };
  });
  return made;
}

// DequantizeKVPairKernel<T, U, float, ...>(keys to, values to, keys, values, key scales, value
// scales, lengths, heads, cache length, head size, type of keys, type of values, is by token)
Computation MakeDequantizedPair(const Launch& launch) {
  Computation made;
  if (launch.name.arguments[1] != "signed char") return made;
  VisitFloat(launch.name.arguments[0], [&](auto tag) {
    using T = typename decltype(tag)::Type;
    const int64_t num_heads = launch.Integer(7);
    const auto part = [&](int index) {
      return Dequantize<T>{
          .to = launch.Get<T*>(index),
          .from = launch.Get<const int8_t*>(2 + index),
          .scales = {launch.Get<const float*>(4 + index),
                     launch.Get<int>(10 + index) == kPerChannel},
          .lengths = launch.Get<const int*>(6),
          .cache = {num_heads, launch.Integer(8), launch.Integer(9), !launch.Get<bool>(12)},
          .batch_size = launch.grid.y / num_heads,
      };
    };
    made = [keys = part(0), values = part(1)] {
      keys();
      values();
    };
  });
  return made;
}

}  // namespace stand_in
