// Which groups of a panel's inputs are multiplied together: called by
// server/runtime/kernels/int8.py.

#include <stdlib.h>
#include <string.h>

#include "exported.h"
#include "kernels.h"
#include "row_int8.h"

namespace {

using row_int8::kGroup;

constexpr int64_t kGroupBytes = kPanel * kGroup;
constexpr int64_t kSums = kGroupBytes;  // of 16 outputs: two halves, two signs
constexpr int kMost = 128;              // 255 times it fits 16 bits

// Of each 16-bit lane that a group's products are added in, how far its weights can take it up and
// down.
struct Reach {
  uint8_t sums[kSums];
  uint8_t largest;

  explicit Reach(const int8_t* group) {
    largest = 0;
    for (int64_t lane = 0; lane < kGroupBytes / 2; lane++) {
      int up = 0, down = 0;
      for (int64_t i = 2 * lane; i < 2 * lane + 2; i++) (group[i] > 0 ? up : down) += abs(group[i]);
      sums[2 * lane] = static_cast<uint8_t>(up);
      sums[2 * lane + 1] = static_cast<uint8_t>(down);
      if (up > largest) largest = static_cast<uint8_t>(up);
      if (down > largest) largest = static_cast<uint8_t>(down);
    }
  }

  bool fits(const Reach& other) const {
    int most = 0;
    for (int64_t i = 0; i < kSums; i++) {
      const int sum = sums[i] + other.sums[i];
      most = sum > most ? sum : most;
    }
    return most <= kMost;
  }
};

// The groups by how far they reach, the farthest first; those that reach as far stay in order.
void sort(const Reach* reaches, int64_t num_groups, uint16_t* sorted) {
  int64_t number = 0;
  for (int largest = kMost; largest >= 0; largest--) {
    for (int64_t g = 0; g < num_groups; g++) {
      if (reaches[g].largest == largest) sorted[number++] = static_cast<uint16_t>(g);
    }
  }
}

// Each group, the farthest first, with the nearest-reaching one that fits it. Returns how many
// found one; those come first in `order`.
int64_t pair(const Reach* reaches, int64_t num_groups, uint16_t* left, uint16_t* order) {
  sort(reaches, num_groups, left);
  int64_t num_left = num_groups, num_paired = 0, last = num_groups;
  for (int64_t first = 0; first < num_left; first++) {
    const uint16_t group = left[first];
    int64_t other = num_left - 1;
    while (other > first && !reaches[group].fits(reaches[left[other]])) other--;
    if (other <= first) {
      order[--last] = group;
      continue;
    }
    order[num_paired++] = group;
    order[num_paired++] = left[other];
    num_left--;
    memmove(left + other, left + other + 1, (num_left - other) * sizeof(*left));
  }
  return num_paired;
}

}  // namespace

// Reorders the groups of each panel [num_groups][16 outputs][4 inputs] so that as many as can be
// come in pairs whose products, with unsigned bytes, add up in 16 bits; none, where kernels have no
// use for pairs. `order` [panels][1 + num_groups]: how many are in pairs, then at which input each
// begins, below 2^16. False: there is no memory.
EXPORTED bool triune_pair_groups(int8_t* weights, int64_t num_panels, int64_t num_groups,
                                 uint16_t* order) {
  if (!kernels().adds_groups_in_pairs) {
    for (int64_t i = 0; i < num_panels * (num_groups + 1); i++) {
      const int64_t place = i % (num_groups + 1);
      order[i] = static_cast<uint16_t>(place ? (place - 1) * kGroup : 0);
    }
    return true;
  }
  void* const memory =
      malloc(num_groups * (sizeof(Reach) + kGroupBytes + sizeof(uint16_t)));
  if (!memory) return false;
  Reach* const reaches = static_cast<Reach*>(memory);
  int8_t* const copy = reinterpret_cast<int8_t*>(reaches + num_groups);
  uint16_t* const left = reinterpret_cast<uint16_t*>(copy + num_groups * kGroupBytes);
  for (int64_t panel = 0; panel < num_panels; panel++) {
    int8_t* const groups = weights + panel * num_groups * kGroupBytes;
    uint16_t* const chosen = order + panel * (num_groups + 1);
    memcpy(copy, groups, num_groups * kGroupBytes);
    for (int64_t g = 0; g < num_groups; g++) reaches[g] = Reach(groups + g * kGroupBytes);
    chosen[0] = static_cast<uint16_t>(pair(reaches, num_groups, left, chosen + 1));
    for (int64_t g = 0; g < num_groups; g++) {
      memcpy(groups + g * kGroupBytes, copy + chosen[1 + g] * kGroupBytes, kGroupBytes);
      chosen[1 + g] = static_cast<uint16_t>(chosen[1 + g] * kGroup);
    }
  }
  free(memory);
  return true;
}
