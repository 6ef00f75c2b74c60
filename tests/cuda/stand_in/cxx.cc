#include <string>

#include <stdlib.h>

// What headers of the C++ library need at run time, so that nothing links to the library: the
// compiler would build it first, which takes most of a minute.

template class std::basic_string<char>;

void* operator new(size_t size) { return malloc(size); }
void operator delete(void* pointer) noexcept { free(pointer); }
void operator delete(void* pointer, size_t) noexcept { free(pointer); }

namespace std::inline __1 {
[[noreturn]] void __libcpp_verbose_abort(const char*, ...) noexcept { abort(); }
}  // namespace std::inline __1
