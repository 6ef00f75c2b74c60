// A matrix in fp32 held in fewer bits where every one of its numbers comes back as it was: those
// of a checkpoint in 16 bits do, and those that were made of 4 or 8 bits by blocks.
#pragma once

#include <stdint.h>

namespace weights {

// server/runtime/kernels/weights.py. The forms of GGUF: bytes are Q8_0, nibbles Q4_0 and Q4_1.
enum class Form : int32_t { kFloat = 0, kHalf = 1, kBrain = 2, kBytes = 3, kNibbles = 4 };

constexpr int64_t kBlock = 32;  // inputs that share a scale, in the last two forms

// Of a panel of 16 outputs; 0 where the form cannot hold so many inputs.
int64_t bytes_of(Form form, int64_t num_inputs);

// Writes a panel [inputs][16] in a form; false if a number would change. A zero may lose its sign,
// which no sum of products sees.
bool hold(Form form, const float* panel, int64_t num_inputs, void* out);

// Inputs first .. last - 1 of a panel as floats [..][16]. They begin and end blocks.
void expand(Form form, const void* panel, int64_t first, int64_t last, float* out);

}  // namespace weights
