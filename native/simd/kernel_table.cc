#include "../kernels.h"

#include "begin_target.h"

namespace matmul::SIMD {
Multiply multiply;
}
namespace row_int8::SIMD {
Quantize quantize;
Multiply multiply;
}
namespace attention::SIMD {
Write write;
Attend attend;
}
namespace norm::SIMD {
Normalize normalize;
}
namespace vocabulary::SIMD {
LogSumExp log_sum_exp;
Top top;
Likeliest likeliest;
}

namespace SIMD {

extern const Kernels kernels;
const Kernels kernels{
    .multiply_floats = matmul::SIMD::multiply,
    .quantize = row_int8::SIMD::quantize,
    .multiply_bytes = row_int8::SIMD::multiply,
    .adds_groups_in_pairs = SIMD_BITS == 256,
    .write = attention::SIMD::write,
    .attend = attention::SIMD::attend,
    .normalize = norm::SIMD::normalize,
    .log_sum_exp = vocabulary::SIMD::log_sum_exp,
    .top = vocabulary::SIMD::top,
    .likeliest = vocabulary::SIMD::likeliest,
};

}  // namespace SIMD

#include "end_target.h"
