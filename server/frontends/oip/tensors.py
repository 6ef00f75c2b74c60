"""Tensors of the Open Inference Protocol. Sizes are checked before memory is allocated for them.

Raw elements are little-endian and row-major. An element of a BYTES tensor is a uint32 length and
that many bytes (https://github.com/triton-inference-server/server, ``extension_binary_data.md``).
"""

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from server.bounds import MAX_IMAGES
from server.errors import InvalidArgumentError
from server.printable import counted, quoted

BYTES = "BYTES"
BOOL = "BOOL"
# NumPy types of raw elements, by datatype.
DTYPES: dict[str, np.dtype[Any]] = {
    BOOL: np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
FLOATS = ("FP16", "FP32", "FP64")
INTEGERS = ("INT64", "INT32", "UINT32", "UINT64")

MAX_INPUTS = 16
MAX_DIMS = 4
MAX_TEXTS = 1 << 16  # elements of a BYTES tensor
MAX_NUMBERS = 1 << 20  # elements of any other tensor
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One unchecked input of a request.

    ``raw`` holds the elements as bytes. If it is ``None``, ``values`` holds them as Python objects,
    in row-major order.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | None = None
    values: Sequence[Any] = ()

    def texts(self) -> tuple[str, ...]:
        """The elements of a BYTES tensor as texts.

        Raises:
            InvalidArgumentError: the tensor is not BYTES, or its shape, size or UTF-8 is invalid;
                the error names the tensor.
        """
        self._check_datatype((BYTES,))
        count = self._num_elements(MAX_TEXTS)
        elements = self._checked_values(count) if self.raw is None else self._split(count)
        return tuple(self._text(index, element) for index, element in enumerate(elements))

    def files(self) -> tuple[bytes, ...]:
        """The elements of a BYTES tensor as files: at least one, at most :data:`MAX_IMAGES`.

        Raises:
            InvalidArgumentError: the tensor is invalid, see :meth:`texts`.
        """
        self._check_datatype((BYTES,))
        count = self._num_elements(MAX_IMAGES)
        if not count:
            raise self._error("must not be empty")
        elements = self._checked_values(count) if self.raw is None else self._split(count)
        return tuple(self._file(index, element) for index, element in enumerate(elements))

    def integers(self) -> tuple[int, ...]:
        """The elements of an integer tensor. Raises ``InvalidArgumentError`` if it is invalid."""
        self._check_datatype(INTEGERS)
        return tuple(self._numbers(int))

    def fractions(self) -> tuple[float, ...]:
        """The elements of an FP32 tensor. Raises ``InvalidArgumentError`` if it is invalid."""
        self._check_datatype(("FP32",))
        return tuple(self._numbers(float))

    def flags(self) -> tuple[bool, ...]:
        """The elements of a BOOL tensor. Raises ``InvalidArgumentError`` if it is invalid."""
        self._check_datatype((BOOL,))
        return tuple(self._numbers(bool))

    def _check_datatype(self, allowed: tuple[str, ...]) -> None:
        if self.datatype not in allowed:
            raise self._error(f"datatype {quoted(self.datatype)} is not {' or '.join(allowed)}")

    def _num_elements(self, limit: int) -> int:
        """The number of elements that the shape implies. Python integers do not overflow."""
        if not 0 < len(self.shape) <= MAX_DIMS:
            raise self._error(f"shape has {len(self.shape)} dimensions, not 1 … {MAX_DIMS}")
        if min(self.shape) < 0:
            raise self._error(f"shape {list(self.shape)} has a negative size")
        count = math.prod(self.shape)
        if count > limit:
            raise self._error(f"shape {list(self.shape)} has {count} elements, at most {limit}")
        return count

    def _checked_values(self, count: int) -> Sequence[Any]:
        if len(self.values) != count:
            raise self._error(
                f"shape {list(self.shape)} has {counted(count, 'element')}, "
                f"but {len(self.values)} are given"
            )
        return self.values

    def _numbers(self, kind: type[Any]) -> Iterator[Any]:
        count = self._num_elements(MAX_NUMBERS)
        if self.raw is None:
            for index, value in enumerate(self._checked_values(count)):
                if type(value) is not kind:
                    raise self._error(f"element {index} is not a value of {self.datatype}")
            yield from self.values
            return
        dtype = DTYPES[self.datatype]
        if len(self.raw) != count * dtype.itemsize:
            raise self._error(
                f"shape {list(self.shape)} of {self.datatype} has {count * dtype.itemsize} bytes, "
                f"but {len(self.raw)} are given"
            )
        yield from np.frombuffer(self.raw, dtype).tolist()

    def _split(self, count: int) -> Iterator[bytes]:
        """Splits ``raw`` into its elements, each of which follows its length."""
        raw = self.raw or b""
        if len(raw) < count * _LENGTH.size:
            raise self._error(
                f"shape {list(self.shape)} has {counted(count, 'element')}, but the "
                f"{counted(len(raw), 'byte')} given "
                "are fewer than their lengths alone"
            )
        position = 0
        for index in range(count):
            if position + _LENGTH.size > len(raw):
                raise self._error(f"the data ends before element {index}")
            (length,) = _LENGTH.unpack_from(raw, position)
            position += _LENGTH.size
            if length > len(raw) - position:
                raise self._error(
                    f"element {index} has a length of {length} bytes, "
                    f"but only {len(raw) - position} follow"
                )
            yield raw[position : position + length]
            position += length
        if position != len(raw):
            raise self._error(f"{len(raw) - position} bytes follow the last element")

    def _text(self, index: int, element: Any) -> str:
        if isinstance(element, str):
            return element
        if not isinstance(element, bytes):
            raise self._error(f"element {index} is not a text")
        try:
            return element.decode()
        except UnicodeDecodeError as error:
            raise self._error(f"element {index} is not UTF-8") from error

    def _file(self, index: int, element: Any) -> bytes:
        if not isinstance(element, bytes):
            raise self._error(f"element {index} is not a file")
        return element

    def _error(self, description: str) -> InvalidArgumentError:
        return InvalidArgumentError(self.name, description)


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output of a response. ``values`` are texts for BYTES, else an array of ``shape``."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[str, ...] | npt.NDArray[Any] = field(repr=False)

    @property
    def raw(self) -> bytes:
        """The elements as bytes."""
        if isinstance(self.values, tuple):
            elements = (text.encode() for text in self.values)
            return b"".join(_LENGTH.pack(len(one)) + one for one in elements)
        return self.values.tobytes()

    def listed(self) -> list[Any]:
        """The elements as Python objects, in row-major order."""
        if isinstance(self.values, tuple):
            return list(self.values)
        listed: list[Any] = self.values.ravel().tolist()
        return listed


def texts_tensor(
    name: str, values: Sequence[str], shape: tuple[int, ...] | None = None
) -> OutputTensor:
    """Makes a BYTES tensor; by default with one dimension."""
    return OutputTensor(name, BYTES, (len(values),) if shape is None else shape, tuple(values))


def numbers_tensor(
    name: str, datatype: str, values: npt.ArrayLike, shape: tuple[int, ...] | None = None
) -> OutputTensor:
    """Makes a tensor of numbers; by default with the shape of ``values``."""
    array = np.asarray(values, DTYPES[datatype])
    if shape is not None:
        array = array.reshape(shape)
    return OutputTensor(name, datatype, array.shape, array)


def check_inputs(inputs: Sequence[InputTensor]) -> None:
    """Rejects empty and duplicate names, and more than :data:`MAX_INPUTS` inputs."""
    if len(inputs) > MAX_INPUTS:
        raise InvalidArgumentError("inputs", f"{len(inputs)} given, at most {MAX_INPUTS}")
    seen: set[str] = set()
    for index, tensor in enumerate(inputs):
        if not tensor.name:
            raise InvalidArgumentError(f"inputs[{index}].name", "is empty")
        if tensor.name in seen:
            raise InvalidArgumentError(tensor.name, "is given twice")
        seen.add(tensor.name)
