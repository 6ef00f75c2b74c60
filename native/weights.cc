#include "weights.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "exported.h"
#include "numbers.h"
#include "output.h"

#define AVX2_FMA __attribute__((target("avx2,fma,f16c")))
#define AVX2_FMA_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) inline

namespace weights {
namespace {

constexpr int64_t kPanelBytes = kPanel * sizeof(float);

// Whole numbers of one output lie in one word, the first input's in its lowest bits; a word of
// each output, then those of the next inputs. Before them, in halves, what they are times, and
// (of nibbles) what is added.
template <int kBits>
struct Blocks {
  static constexpr int64_t kPerWord = 32 / kBits;  // inputs
  static constexpr bool kHasOffset = kBits == 4;
  static constexpr int64_t kScales = 0, kOffsets = kPanel, kHalves = kHasOffset ? 32 : 16;
  static constexpr int64_t kWords = kBlock / kPerWord * kPanel;

  uint16_t halves[kHalves];
  uint32_t words[kWords];
};

AVX2_FMA uint16_t half_of(float x) {
  return static_cast<uint16_t>(
      _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT), 0));
}

AVX2_FMA float of_half(uint16_t x) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x))); }

uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

bool hold_half(const float* panel, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; i++) {
    out[i] = half_of(panel[i]);
    if (!(of_half(out[i]) == panel[i])) return false;
  }
  return true;
}

bool hold_brain(const float* panel, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; i++) {
    const uint32_t bits = bits_of(panel[i]);
    if (bits & 0xffff) return false;
    out[i] = static_cast<uint16_t>(bits >> 16);
  }
  return true;
}

// The whole numbers n of a block's output with n * scale + offset as it is; false if there are
// none from `least` to `most`.
AVX2_FMA bool find_numbers(const float* column, float scale, float offset, int least, int most,
                           int* numbers) {
  for (int64_t i = 0; i < kBlock; i++) {
    const float value = column[i * kPanel];
    const float number = scale == 0.0f ? 0.0f : roundf((value - offset) / scale);
    if (!(number >= least && number <= most)) return false;
    numbers[i] = static_cast<int>(number);
    if (!(fmaf(number, scale, offset) == value)) return false;
  }
  return true;
}

struct Bounds {
  float least, most;
};

Bounds bounds_of(const float* column) {
  Bounds found{column[0], column[0]};
  for (int64_t i = 1; i < kBlock; i++) {
    found.least = fminf(found.least, column[i * kPanel]);
    found.most = fmaxf(found.most, column[i * kPanel]);
  }
  return found;
}

// Scale and offset, halves, by which an output of a block is made of whole numbers.
struct Scale {
  uint16_t scale, offset;
};

bool find_scale(const Blocks<8>&, const float* column, Scale& found, int* numbers) {
  const Bounds bounds = bounds_of(column);
  const float largest = fmaxf(bounds.most, -bounds.least);
  found = {half_of(largest / 127.0f), 0};
  return find_numbers(column, of_half(found.scale), 0.0f, -128, 127, numbers);
}

bool find_scale(const Blocks<4>&, const float* column, Scale& found, int* numbers) {
  const Bounds bounds = bounds_of(column);
  const float largest = bounds.most > -bounds.least ? bounds.most : bounds.least;
  const Scale tried[] = {{half_of((bounds.most - bounds.least) / 15.0f), half_of(bounds.least)},
                         {half_of(largest / -8.0f), half_of(largest)}};
  for (const Scale& scale : tried) {
    found = scale;
    if (find_numbers(column, of_half(scale.scale), of_half(scale.offset), 0, 15, numbers)) {
      return true;
    }
  }
  return false;
}

template <int kBits>
bool hold_blocks(const float* panel, int64_t num_inputs, Blocks<kBits>* out) {
  using Block = Blocks<kBits>;
  constexpr uint32_t kMask = (1u << kBits) - 1;
  for (int64_t begin = 0; begin < num_inputs; begin += kBlock, out++) {
    memset(out, 0, sizeof *out);
    for (int64_t output = 0; output < kPanel; output++) {
      Scale found;
      int numbers[kBlock];
      if (!find_scale(*out, panel + begin * kPanel + output, found, numbers)) return false;
      out->halves[Block::kScales + output] = found.scale;
      if (Block::kHasOffset) out->halves[Block::kOffsets + output] = found.offset;
      for (int64_t i = 0; i < kBlock; i++) {
        out->words[i / Block::kPerWord * kPanel + output] |=
            (static_cast<uint32_t>(numbers[i]) & kMask) << (i % Block::kPerWord * kBits);
      }
    }
  }
  return true;
}

AVX2_FMA __m256 halves_at(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

AVX2_FMA void expand_half(const uint16_t* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 8) _mm256_storeu_ps(out + i, halves_at(from + i));
}

AVX2_FMA void expand_brain(const uint16_t* from, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16);
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(bits));
  }
}

// The i-th numbers of eight words.
template <int kBits>
AVX2_FMA_INLINE __m256 numbers_of(__m256i words, int i) {
  if (kBits == 4) {
    const __m256i nibbles = _mm256_srli_epi32(words, 4 * i);
    return _mm256_cvtepi32_ps(_mm256_and_si256(nibbles, _mm256_set1_epi32(15)));
  }
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * i), 24));
}

template <int kBits>
AVX2_FMA void expand_blocks(const Blocks<kBits>* from, int64_t count, float* out) {
  using Block = Blocks<kBits>;
  for (; count > 0; count--, from++) {
    for (int half = 0; half < 2; half++) {
      const __m256 scale = halves_at(from->halves + Block::kScales + 8 * half);
      const __m256 offset = Block::kHasOffset ? halves_at(from->halves + Block::kOffsets + 8 * half)
                                              : _mm256_setzero_ps();
      float* to = out + 8 * half;
      for (int64_t word = 0; word < Block::kWords; word += kPanel) {
        const __m256i words = _mm256_loadu_si256(
            reinterpret_cast<const __m256i*>(from->words + word + 8 * half));
#pragma GCC unroll 8
        for (int i = 0; i < Block::kPerWord; i++, to += kPanel) {
          const __m256 numbers = numbers_of<kBits>(words, i);
          _mm256_storeu_ps(to, Block::kHasOffset ? _mm256_fmadd_ps(numbers, scale, offset)
                                                 : _mm256_mul_ps(numbers, scale));
        }
      }
    }
    out += kBlock * kPanel;
  }
}

}  // namespace

int64_t bytes_of(Form form, int64_t num_inputs) {
  const bool is_whole = num_inputs % kBlock == 0;
  switch (form) {
    case Form::kFloat: return num_inputs * kPanelBytes;
    case Form::kHalf:
    case Form::kBrain: return num_inputs * kPanelBytes / 2;
    case Form::kBytes: return is_whole ? num_inputs / kBlock * sizeof(Blocks<8>) : 0;
    case Form::kNibbles: return is_whole ? num_inputs / kBlock * sizeof(Blocks<4>) : 0;
  }
  return 0;
}

bool hold(Form form, const float* panel, int64_t num_inputs, void* out) {
  switch (form) {
    case Form::kFloat: memcpy(out, panel, num_inputs * kPanelBytes); return true;
    case Form::kHalf: return hold_half(panel, num_inputs * kPanel, static_cast<uint16_t*>(out));
    case Form::kBrain: return hold_brain(panel, num_inputs * kPanel, static_cast<uint16_t*>(out));
    case Form::kBytes: return hold_blocks(panel, num_inputs, static_cast<Blocks<8>*>(out));
    case Form::kNibbles: return hold_blocks(panel, num_inputs, static_cast<Blocks<4>*>(out));
  }
  return false;
}

void expand(Form form, const void* panel, int64_t first, int64_t last, float* out) {
  const int64_t at = first * kPanel, count = (last - first) * kPanel;
  const int64_t block = first / kBlock, num_blocks = (last - first) / kBlock;
  switch (form) {
    case Form::kFloat: memcpy(out, static_cast<const float*>(panel) + at, count * 4); break;
    case Form::kHalf: expand_half(static_cast<const uint16_t*>(panel) + at, count, out); break;
    case Form::kBrain: expand_brain(static_cast<const uint16_t*>(panel) + at, count, out); break;
    case Form::kBytes:
      expand_blocks(static_cast<const Blocks<8>*>(panel) + block, num_blocks, out);
      break;
    case Form::kNibbles:
      expand_blocks(static_cast<const Blocks<4>*>(panel) + block, num_blocks, out);
      break;
  }
}

}  // namespace weights

using weights::Form;

// As weights::bytes_of, for server/runtime/kernels/weights.py.
EXPORTED int64_t triune_weights_bytes(int32_t form, int64_t num_inputs) {
  return weights::bytes_of(static_cast<Form>(form), num_inputs);
}

// As weights::hold, of some panels; 0 if a number would change.
EXPORTED int32_t triune_weights_hold(int32_t form, const float* panels, int64_t num_panels,
                                     int64_t num_inputs, uint8_t* out) {
  const int64_t num_bytes = triune_weights_bytes(form, num_inputs);
  for (int64_t panel = 0; panel < num_panels; panel++) {
    const float* floats = panels + panel * num_inputs * kPanel;
    if (!weights::hold(static_cast<Form>(form), floats, num_inputs, out + panel * num_bytes)) {
      return 0;
    }
  }
  return 1;
}
