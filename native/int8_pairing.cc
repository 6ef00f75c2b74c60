// Orders the groups of packed int8 weights for the AVX2 micro-kernel, which adds the products of
// two groups in 16-bit lanes before it widens them, if no lane can overflow. Any two groups may
// share lanes, so each panel pairs groups whose sums fit. server/runtime/kernels/int8.py calls it.

#include <stdlib.h>
#include <string.h>

#include "exported.h"
#include "int8_matmul.h"
#include "kernels.h"

namespace {

using int8_matmul::kKr;

constexpr int64_t kGroupBytes = kPanelWidth * kKr;
constexpr int64_t kNumBounds = kGroupBytes;  // two for each of 32 lanes of 16 bits
constexpr int kMaxBound = 128;               // 255 * 128 fits 16 bits

// How far a group's products can move each 16-bit lane up and down, in units of 255.
struct LaneBounds {
  uint8_t bounds[kNumBounds];
  uint8_t largest;

  explicit LaneBounds(const int8_t* group) {
    largest = 0;
    for (int64_t lane = 0; lane < kGroupBytes / 2; lane++) {
      int up = 0, down = 0;
      for (int64_t i = 2 * lane; i < 2 * lane + 2; i++) (group[i] > 0 ? up : down) += abs(group[i]);
      bounds[2 * lane] = static_cast<uint8_t>(up);
      bounds[2 * lane + 1] = static_cast<uint8_t>(down);
      if (up > largest) largest = static_cast<uint8_t>(up);
      if (down > largest) largest = static_cast<uint8_t>(down);
    }
  }

  // Whether both groups' products fit the same lanes.
  bool fits_with(const LaneBounds& other) const {
    int max_sum = 0;
    for (int64_t i = 0; i < kNumBounds; i++) {
      const int sum = bounds[i] + other.bounds[i];
      max_sum = sum > max_sum ? sum : max_sum;
    }
    return max_sum <= kMaxBound;
  }
};

// Group numbers by their largest bound, descending; stable.
void sort_by_bound(const LaneBounds* groups, int64_t num_groups, uint16_t* sorted) {
  int64_t count = 0;
  for (int largest = kMaxBound; largest >= 0; largest--) {
    for (int64_t g = 0; g < num_groups; g++) {
      if (groups[g].largest == largest) sorted[count++] = static_cast<uint16_t>(g);
    }
  }
}

// Greedy matching: each group, largest bound first, takes the one of smallest bound that fits it.
// Writes paired groups to the front of `order` and the others to its end; returns how many are
// paired. `unpaired` [num_groups] is scratch.
int64_t pair_groups(const LaneBounds* groups, int64_t num_groups, uint16_t* unpaired,
                    uint16_t* order) {
  sort_by_bound(groups, num_groups, unpaired);
  int64_t num_unpaired = num_groups, num_paired = 0, end = num_groups;
  for (int64_t first = 0; first < num_unpaired; first++) {
    const uint16_t group = unpaired[first];
    int64_t partner = num_unpaired - 1;
    while (partner > first && !groups[group].fits_with(groups[unpaired[partner]])) partner--;
    if (partner <= first) {
      order[--end] = group;
      continue;
    }
    order[num_paired++] = group;
    order[num_paired++] = unpaired[partner];
    num_unpaired--;
    memmove(unpaired + partner, unpaired + partner + 1,
            (num_unpaired - partner) * sizeof(*unpaired));
  }
  return num_paired;
}

// The order for kernels that need no pairs: groups keep their order.
void write_identity_order(int64_t num_panels, int64_t num_groups, uint16_t* group_order) {
  for (int64_t i = 0; i < num_panels * (num_groups + 1); i++) {
    const int64_t place = i % (num_groups + 1);
    group_order[i] = static_cast<uint16_t>(place ? (place - 1) * kKr : 0);
  }
}

}  // namespace

// Reorders the groups of each panel of `weights` [panels][groups][16 outputs][4 inputs] in place,
// pairs first, and writes `group_order` (int8_matmul.h); inputs are below 2^16. The AVX-512
// micro-kernel needs no pairs and keeps the order. Returns false if memory runs out.
EXPORTED bool triune_pair_groups(int8_t* weights, int64_t num_panels, int64_t num_groups,
                                 uint16_t* group_order) {
  if (!kernels().uses_group_pairs) {
    write_identity_order(num_panels, num_groups, group_order);
    return true;
  }
  void* const memory =
      malloc(num_groups * (sizeof(LaneBounds) + kGroupBytes + sizeof(uint16_t)));
  if (!memory) return false;
  LaneBounds* const bounds = static_cast<LaneBounds*>(memory);
  int8_t* const copy = reinterpret_cast<int8_t*>(bounds + num_groups);
  uint16_t* const unpaired = reinterpret_cast<uint16_t*>(copy + num_groups * kGroupBytes);
  for (int64_t panel = 0; panel < num_panels; panel++) {
    int8_t* const groups = weights + panel * num_groups * kGroupBytes;
    uint16_t* const order = group_order + panel * (num_groups + 1);
    memcpy(copy, groups, num_groups * kGroupBytes);
    for (int64_t g = 0; g < num_groups; g++) bounds[g] = LaneBounds(groups + g * kGroupBytes);
    order[0] = static_cast<uint16_t>(pair_groups(bounds, num_groups, unpaired, order + 1));
    for (int64_t g = 0; g < num_groups; g++) {
      memcpy(groups + g * kGroupBytes, copy + order[1 + g] * kGroupBytes, kGroupBytes);
      order[1 + g] = static_cast<uint16_t>(order[1 + g] * kKr);
    }
  }
  free(memory);
  return true;
}
