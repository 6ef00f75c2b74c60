#include "computations.h"

#include <map>

namespace stand_in {
namespace {

using Make = Computation (*)(const Launch&);

struct Known {
  Name name;
  Make make;
};

Make MakeOf(const std::string& base) {
  static std::map<std::string, Make> makes;
  if (makes.empty()) {
    for (const Kernels& kernels :
         {kAttentionKernels, kElementKernels, kExpertKernels, kJoinKernels, kNormKernels,
          kQuantizedKernels, kRoutingKernels, kShapeKernels, kSelectionKernels, kSoftmaxKernels,
          kUnaryKernels}) {
      for (int i = 0; i < kernels.count; ++i) makes[kernels.first[i].name] = kernels.first[i].make;
    }
  }
  const auto found = makes.find(base);
  return found == makes.end() ? nullptr : found->second;
}

}  // namespace

int64_t Launch::Integer(int index) const {
  const std::string& type = name.parameters[static_cast<size_t>(index)];
  if (type == "int") return Get<int32_t>(index);
  if (type == "unsigned int") return Get<uint32_t>(index);
  if (type == "bool") return Get<bool>(index);
  return Get<int64_t>(index);
}

std::string OperatorOf(const std::string& type) {
  const size_t begin = type.find("OP_") + 3;
  return type.substr(begin, type.find('<', begin) - begin);
}

}  // namespace stand_in

using namespace stand_in;

// A MakeComputation.
extern "C" __attribute__((visibility("default"))) const MakeComputation StandInMakeComputation =
    [](const std::string& mangled, void** parameters, Extent grid, Extent block) -> Computation {
  static std::map<std::string, Known> known;
  auto found = known.find(mangled);
  if (found == known.end()) {
    const Name name = NameOf(mangled);
    found = known.emplace(mangled, Known{name, MakeOf(name.base)}).first;
  }
  const auto& [name, make] = found->second;
  return make == nullptr ? nullptr : make({name, parameters, grid, block});
};
