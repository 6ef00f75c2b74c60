"""Recognises errors of runtime libraries that mean "out of memory"."""

# Lower-case parts of the messages of ONNX Runtime's arena, the CUDA runtime and driver, cuBLAS,
# cuDNN, the C++ library and NumPy. The libraries have no common exception type.
_MESSAGES = (
    "failed to allocate memory",
    "out of memory",
    "out_of_memory",
    "alloc_failed",
    "allocation_failed",
    "bad_alloc",
    "bad allocation",
    "unable to allocate",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error``, or its cause, means that memory could not be allocated."""
    if isinstance(error, MemoryError):
        return True
    message = str(error).lower()
    if any(part in message for part in _MESSAGES):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)
