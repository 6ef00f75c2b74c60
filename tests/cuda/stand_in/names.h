// Parses the C++ names of kernels.

#pragma once

#include <string>
#include <vector>

namespace stand_in {

struct Name {
  std::string base;                     // with namespaces, without arguments
  std::vector<std::string> arguments;   // of the template
  std::vector<std::string> parameters;  // their types
};

// Parses a mangled name.
Name NameOf(const std::string& mangled);

// Splits a text at the commas outside brackets.
std::vector<std::string> PartsOf(const std::string& text);

}  // namespace stand_in
