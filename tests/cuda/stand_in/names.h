// Names of kernels, as C++ writes them.

#pragma once

#include <string>
#include <vector>

namespace stand_in {

struct Name {
  std::string base;                     // with namespaces
  std::vector<std::string> arguments;   // of the template
  std::vector<std::string> parameters;  // their types
};

// Reads a mangled name.
Name NameOf(const std::string& mangled);

// Parts of a text between commas that are in no brackets.
std::vector<std::string> PartsOf(const std::string& text);

}  // namespace stand_in
