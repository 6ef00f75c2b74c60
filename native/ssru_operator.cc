#include "ssru_operator.h"

#include "kernels.h"
#include "operator.h"
#include "ssru.h"

namespace ort {
namespace {

constexpr int64_t kTaskFloats = 16 * 1024;  // about 5 microseconds

enum Input : size_t { kForget, kInput, kPast, kResidual, kNumInputs };

struct Work {
  ssru::Step step;
  int64_t size;  // of all rows together
};

void advance_task(void* data, size_t index) {
  const Work& work = *static_cast<Work*>(data);
  const int64_t first = static_cast<int64_t>(index) * kTaskFloats;
  const ssru::Step& all = work.step;
  const ssru::Step part{all.forget + first,   all.input + first, all.past + first,
                        all.residual + first, all.state + first, all.y + first};
  kernels().ssru_advance(part, min(kTaskFloats, work.size - first));
}

struct Ssru {
  static constexpr const char* kName = "Ssru";
  static constexpr Parameter kInputs[] = {{kFloat}, {kFloat}, {kFloat}, {kFloat}};
  static constexpr Parameter kOutputs[] = {{kFloat}, {kFloat}};
  static constexpr int kInPlaceInput = kResidual;

  Status* create(const Api&, const KernelInfo*) { return nullptr; }

  Status* run(const Api& api, KernelContext* context) const {
    const float* inputs[kNumInputs] = {};
    Dimensions shapes[kNumInputs];
    for (size_t index = 0; index < kNumInputs; index++) {
      const Value* value = nullptr;
      RETURN_IF_FAILED(api.Input(context, index, &value));
      RETURN_IF_FAILED(data_of(api, value, inputs[index]));
      RETURN_IF_FAILED(dimensions(api, value, shapes[index]));
    }
    const Dimensions &past = shapes[kPast], &residual = shapes[kResidual];
    const int64_t size = past.num_rows() * past.last();
    for (const Dimensions& shape : shapes) {
      if (shape.num_rows() * shape.last() != size) {
        return api.CreateStatus(kInvalidArgument, "all inputs must have as many elements");
      }
    }
    float *y = nullptr, *state = nullptr;
    RETURN_IF_FAILED(output_data(api, context, 0, residual.sizes, residual.rank, y));
    RETURN_IF_FAILED(output_data(api, context, 1, past.sizes, past.rank, state));
    Work work{
        {inputs[kForget], inputs[kInput], inputs[kPast], inputs[kResidual], state, y}, size};
    return run_tasks(api, context, advance_task, div_ceil(size, kTaskFloats), &work);
  }
};

}  // namespace

const Operator& ssru() { return make_operator<Ssru>(); }

}  // namespace ort
