#include <string>

#include <stdlib.h>

// The symbols that headers of the C++ library need at run time. So nothing links to that library,
// which the compiler would first build, in most of a minute.

template class std::basic_string<char>;

void* operator new(size_t size) { return malloc(size); }
void operator delete(void* pointer) noexcept { free(pointer); }
void operator delete(void* pointer, size_t) noexcept { free(pointer); }

namespace std::inline __1 {
[[noreturn]] void __libcpp_verbose_abort(const char*, ...) noexcept { abort(); }
}  // namespace std::inline __1
