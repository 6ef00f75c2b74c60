#include "names.h"

#include <dlfcn.h>
#include <stdlib.h>

namespace stand_in {
namespace {

using Demangle = char* (*)(const char*, char*, size_t*, int*);

// The name of a template without its arguments, for names too long for the C++ library.
std::string NameAlone(const std::string& mangled) {
  if (mangled.compare(0, 3, "_ZN") != 0) return mangled;
  std::string name;
  const char* rest = mangled.c_str() + 3;
  while (*rest >= '0' && *rest <= '9') {
    char* part = nullptr;
    const size_t length = strtoul(rest, &part, 10);
    name += (name.empty() ? "" : "::") + std::string(part, length);
    rest = part + length;
  }
  return name;
}

// Demangles with the C++ library of ONNX Runtime.
std::string Demangled(const std::string& mangled) {
  static void* library = dlopen("libstdc++.so.6", RTLD_LAZY);
  static const auto demangle = reinterpret_cast<Demangle>(dlsym(library, "__cxa_demangle"));
  int status = 0;
  char* text = demangle(mangled.c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return NameAlone(mangled);
  const std::string found = text;
  free(text);
  return found;
}

bool Opens(char c) { return c == '<' || c == '(' || c == '{'; }
bool Closes(char c) { return c == '>' || c == ')' || c == '}'; }

// The position of the bracket that closes the one at `begin`.
size_t EndOf(const std::string& text, size_t begin) {
  int depth = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    if (Opens(text[i])) ++depth;
    if (Closes(text[i]) && --depth == 0) return i;
  }
  return text.size();
}

// Removes the result type, which the names of template functions include.
std::string WithoutResult(std::string text) {
  if (text.compare(0, 5, "void ") == 0) text.erase(0, 5);
  const std::string unnamed = "(anonymous namespace)::";
  for (size_t at; (at = text.find(unnamed)) != std::string::npos;) text.erase(at, unnamed.size());
  return text;
}

}  // namespace

std::vector<std::string> PartsOf(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (Opens(text[i])) ++depth;
    if (Closes(text[i])) --depth;
    if (text[i] != ',' || depth != 0) continue;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 2;
  }
  if (begin < text.size()) parts.push_back(text.substr(begin));
  return parts;
}

Name NameOf(const std::string& mangled) {
  const std::string text = WithoutResult(Demangled(mangled));
  const size_t bracket = text.find_first_of("<(");
  Name name{text.substr(0, bracket), {}, {}};
  if (bracket == std::string::npos) return name;
  size_t end = bracket;
  if (text[bracket] == '<') {
    end = EndOf(text, bracket);
    name.arguments = PartsOf(text.substr(bracket + 1, end - bracket - 1));
    end = text.find('(', end);
    if (end == std::string::npos) return name;
  }
  name.parameters = PartsOf(text.substr(end + 1, EndOf(text, end) - end - 1));
  return name;
}

}  // namespace stand_in
