// Stands in for cuDNN's recurrent layers in tests: GRU and LSTM with one layer.
// Source: cuDNN 9, "cudnn_adv Library", cudnnRNNMode_t.

#include <vector>

#include <math.h>

#include "cudnn.h"

using namespace stand_in;

namespace {

constexpr int kNotSupported = 3000;  // CUDNN_STATUS_NOT_SUPPORTED

// From cudnnRNNMode_t, cudnnRNNBiasMode_t and cudnnRNNDataLayout_t.
enum Cell { kLstm = 2, kGru = 3 };
constexpr int kNoBias = 0, kBothBiases = 2;
constexpr int kByStep = 0;

struct Layer {
  int cell, bias, num_directions, type, input_size, size;

  int NumGates() const { return cell == kLstm ? 4 : 3; }

  // The weights of a direction: a matrix of the input for each gate, then of the state, each [size,
  // inputs], then biases in the same order. Positions count elements from the first weight.
  int64_t NumInputs(int number) const { return number < NumGates() ? input_size : size; }
  int64_t Matrix(int direction, int number) const {
    int64_t place = direction * NumWeights();
    for (int i = 0; i < number; ++i) place += size * NumInputs(i);
    return place;
  }
  int64_t Bias(int direction, int number) const {
    return Matrix(direction, 2 * NumGates()) + number * size;
  }

 private:
  int64_t NumWeights() const {
    return static_cast<int64_t>(NumGates()) * size * (input_size + size + 2);
  }
};

struct Data {
  int num_steps, batch_size;
  int* lengths;  // [batch_size]
};

struct Forward {
  Layer layer;
  int num_steps, batch_size;
  const void* input;             // [steps, batch, input size]
  void* output;                  // [steps, batch, directions, size]; zeros after a sequence
  const void *state, *cell;      // [directions, batch, size]; null: zeros
  void *last_state, *last_cell;  // null: not wanted
  const void* weights;
};

float Sigmoid(float x) { return 1 / (1 + expf(-x)); }

template <typename T>
class Run {
 public:
  Run(const Forward& forward, const int* lengths)
      : f_(forward),
        layer_(forward.layer),
        lengths_(lengths),
        from_input_(Products()),
        from_state_(Products()) {}

  void operator()() {
    for (int direction = 0; direction < layer_.num_directions; ++direction) {
      for (int entry = 0; entry < f_.batch_size; ++entry) Of(direction, entry);
    }
  }

 private:
  using Floats = std::vector<float>;

  Floats Products() const { return Floats(static_cast<size_t>(layer_.NumGates() * layer_.size)); }

  void Of(int direction, int entry) {
    const int64_t place = (static_cast<int64_t>(direction) * f_.batch_size + entry) * layer_.size;
    Floats state = Read(f_.state, place), cell = Read(f_.cell, place);
    for (int i = 0; i < f_.num_steps; ++i) {
      const bool is_step = i < lengths_[entry];
      const int step = direction == 0 || !is_step ? i : lengths_[entry] - 1 - i;
      const int64_t row = static_cast<int64_t>(step) * f_.batch_size + entry;
      const int64_t target = (row * layer_.num_directions + direction) * layer_.size;
      const T* input = static_cast<const T*>(f_.input) + row * layer_.input_size;
      if (is_step) Step(direction, input, &state, &cell);
      Write(is_step ? state : Floats(state.size()), f_.output, target);
    }
    Write(state, f_.last_state, place);
    Write(cell, f_.last_cell, place);
  }

  Floats Read(const void* from, int64_t place) const {
    Floats found(static_cast<size_t>(layer_.size));
    if (from == nullptr) return found;
    const T* first = static_cast<const T*>(from) + place;
    for (size_t i = 0; i < found.size(); ++i) found[i] = static_cast<float>(first[i]);
    return found;
  }

  void Write(const Floats& values, void* to, int64_t place) const {
    if (to == nullptr) return;
    T* first = static_cast<T*>(to) + place;
    for (size_t i = 0; i < values.size(); ++i) first[i] = static_cast<T>(values[i]);
  }

  // Products of `inputs` with the matrices from number `first` on, plus their biases.
  template <typename Inputs>
  void Multiply(int direction, int first, const Inputs& inputs, Floats* products) const {
    const T* weights = static_cast<const T*>(f_.weights);
    const int64_t num_inputs = layer_.NumInputs(first);
    for (size_t i = 0; i < products->size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      const T* factors = weights + layer_.Matrix(direction, first) + row * num_inputs;
      float sum = layer_.bias == kNoBias
                      ? 0
                      : static_cast<float>(weights[layer_.Bias(direction, first) + row]);
      for (int64_t j = 0; j < num_inputs; ++j) {
        sum += static_cast<float>(factors[j]) * static_cast<float>(inputs[static_cast<size_t>(j)]);
      }
      (*products)[i] = sum;
    }
  }

  void Step(int direction, const T* input, Floats* state, Floats* cell) {
    Multiply(direction, 0, input, &from_input_);
    Multiply(direction, layer_.NumGates(), *state, &from_state_);
    for (size_t i = 0; i < state->size(); ++i) {
      const auto input_of = [&](size_t gate) { return from_input_[gate * state->size() + i]; };
      const auto state_of = [&](size_t gate) { return from_state_[gate * state->size() + i]; };
      const auto gate = [&](size_t number) { return Sigmoid(input_of(number) + state_of(number)); };
      float& value = (*state)[i];
      if (layer_.cell == kLstm) {  // input, forget, new cell, output
        float& kept = (*cell)[i];
        kept = gate(1) * kept + gate(0) * tanhf(input_of(2) + state_of(2));
        value = gate(3) * tanhf(kept);
      } else {  // reset, update, new state
        const float made = tanhf(input_of(2) + gate(0) * state_of(2));
        value = made + gate(1) * (value - made);
      }
      value = static_cast<float>(static_cast<T>(value));
    }
  }

  const Forward& f_;
  const Layer& layer_;
  const int* lengths_;
  Floats from_input_, from_state_;
};

// The lengths follow the parameters in memory.
const char* RunForward(const void* parameters) {
  const auto& forward = *static_cast<const Forward*>(parameters);
  const auto* lengths = reinterpret_cast<const int*>(&forward + 1);
  VisitType(forward.layer.type,
            [&](auto tag) { Run<typename decltype(tag)::Type>(forward, lengths)(); });
  return nullptr;
}

}  // namespace

API int cudnnSetRNNDescriptor_v8(Layer* layer, int, int cell, int bias, int direction, int,
                                 int type, int, int, int input_size, int size, int projected_size,
                                 int num_layers, void*, unsigned) {
  if ((cell != kLstm && cell != kGru) || (bias != kNoBias && bias != kBothBiases) ||
      projected_size != size || num_layers != 1) {
    return kNotSupported;
  }
  *layer = {cell, bias, direction + 1, type, input_size, size};
  return 0;
}

API int cudnnSetRNNDataDescriptor(Data* data, int, int layout, int num_steps, int batch_size, int,
                                  const int* lengths, const void*) {
  if (layout != kByStep) return kNotSupported;
  const size_t num_bytes = sizeof(int) * static_cast<size_t>(batch_size);
  data->num_steps = num_steps;
  data->batch_size = batch_size;
  data->lengths = static_cast<int*>(realloc(data->lengths, num_bytes));
  memcpy(data->lengths, lengths, num_bytes);
  return 0;
}

API int cudnnDestroyRNNDataDescriptor(Data* data) {
  free(data->lengths);
  free(data);
  return 0;
}

API int cudnnDestroyRNNDescriptor(Layer* layer) {
  free(layer);
  return 0;
}

API int cudnnGetRNNTempSpaceSizes(void*, void*, int, void*, size_t* work, size_t* reserved) {
  *work = *reserved = 1024;
  return 0;
}

API int cudnnGetRNNWeightParams(void*, const Layer* layer, int direction, size_t, char* weights,
                                int number, Tensor* matrix, void** matrix_place, Tensor* bias,
                                void** bias_place) {
  const int num_inputs = static_cast<int>(layer->NumInputs(number)), size = layer->size;
  *matrix = {layer->type, 3, {1, size, num_inputs}, {size * num_inputs, num_inputs, 1}};
  *bias = {layer->type, 3, {1, size, 1}, {size, 1, 1}};
  VisitType(layer->type, [&](auto tag) {
    auto* first = reinterpret_cast<typename decltype(tag)::Type*>(weights);
    *matrix_place = first + layer->Matrix(direction, number);
    *bias_place = first + layer->Bias(direction, number);
  });
  return 0;
}

// As in cuDNN 9, the lengths come from the input's descriptor.
API int cudnnRNNForward(void** handle, const Layer* layer, int, const int*, const Data* data,
                        const void* input, const void*, void* output, const void*,
                        const void* state, void* last_state, const void*, const void* cell,
                        void* last_cell, size_t, const void* weights, size_t, void*, size_t,
                        void*) {
  const Forward forward = {*layer, data->num_steps, data->batch_size, input,   output,
                           state,  cell,            last_state,       last_cell, weights};
  const size_t lengths_size = sizeof(int) * static_cast<size_t>(data->batch_size);
  std::vector<char> parameters(sizeof(forward) + lengths_size);
  memcpy(parameters.data(), &forward, sizeof(forward));
  memcpy(parameters.data() + sizeof(forward), data->lengths, lengths_size);
  return StandInLaunch(*handle, "cudnnRNNForward", RunForward, parameters.data(),
                       parameters.size());
}

CREATE(cudnnCreateRNNDataDescriptor)
CREATE(cudnnCreateRNNDescriptor)
