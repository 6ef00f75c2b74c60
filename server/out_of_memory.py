"""Recognises that an error of a runtime library means: there is not enough memory."""

# Parts of messages, in lower case: of ONNX Runtime's arena, the CUDA runtime and driver, cuBLAS,
# cuDNN, the C++ library and NumPy. The libraries have no common type for them.
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
    """Whether ``error``, or the error that caused it, tells that memory could not be allocated."""
    if isinstance(error, MemoryError):
        return True
    message = str(error).lower()
    if any(part in message for part in _MESSAGES):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)
