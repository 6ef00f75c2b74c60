"""CTranslate2's model files (``model.bin``), binary version 6.

Layout (CTranslate2, ``specs/model_spec.py``, ``_serialize``), little-endian: u32 version; the
specification's name; u32 its revision; u32 N; N variables of name, u8 number of dimensions, u32
dimensions, u8 type, u32 bytes of data, data; u32 M; M pairs of an alias and the name of a variable.
A name is a u16 length with the NUL, UTF-8, NUL.
"""

import math
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from export.errors import SourceError
from export.readers.cursor import Cursor
from export.readers.fields import Fields

MODEL_FILE = "model.bin"
VERSION = 6
# By number. Quantized types have a scale: a weight is integer / scale.
TYPES = (
    torch.float32,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.float16,
    torch.bfloat16,
)
SCALE = "_scale"

_MAX_DIMENSIONS = 4
_HEAD = re.compile(rb"[\x01-\x1f]\0{3}.\0[A-Za-z0-9]+Spec\0", re.DOTALL)
_HEAD_BYTES = 64
# The sizes of a scalar int8 with a one-character name, and of a pair of such names.
_MIN_VARIABLE_BYTES, _MIN_ALIAS_BYTES = 10, 6


@dataclass(frozen=True)
class Variable:
    """A variable of the file; ``data`` is a view of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    data: memoryview

    def read(self) -> Tensor:
        """A copy of the values."""
        raw = torch.from_numpy(np.frombuffer(self.data, np.uint8).copy())
        return raw.view(self.dtype).reshape(self.shape)


class CTranslate2Weights(Mapping[str, Tensor]):
    """Weights by name and by alias, read on access; integers with a scale become fp32."""

    def __init__(
        self, variables: Mapping[str, Variable], aliases: Mapping[str, str], origin: str
    ) -> None:
        self._variables = variables
        self._aliases = aliases
        self._origin = origin
        names = (name for name in [*variables, *aliases] if not self._is_scale(name))
        self._names = dict.fromkeys(name for name in names if self.shape(name))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        variable = self._resolve(name)
        scale = self._variables.get(variable.name + SCALE)
        if variable.dtype.is_floating_point or scale is None:
            return variable.read()
        return self._dequantize(variable, scale.read())

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a weight, without reading it.

        Raises:
            KeyError: there is no such weight.
        """
        return self._resolve(name).shape

    def _resolve(self, name: str) -> Variable:
        return self._variables[self._aliases.get(name, name)]

    def _is_scale(self, name: str) -> bool:
        base = name.removesuffix(SCALE)
        return base != name and (base in self._variables or base in self._aliases)

    def _dequantize(self, variable: Variable, scale: Tensor) -> Tensor:
        """int8 has a scale per row, of a matrix or of a convolution's filters; int16 has one scale.

        Raises:
            SourceError: the scale does not fit, or is not a positive number.
        """
        rows = variable.shape[0]
        if not scale.is_floating_point() or scale.shape not in ((), (1,), (rows,)):
            raise SourceError(
                f"{self._origin}: {variable.name} of shape {list(variable.shape)} has a scale of "
                f"shape {list(scale.shape)} and type {scale.dtype}"
            )
        scale = scale.float()
        if not bool((scale.isfinite() & (scale > 0)).all()):
            raise SourceError(f"{self._origin}: {variable.name}: a scale is not a positive number")
        return variable.read().float() / scale.reshape(-1, *[1] * (len(variable.shape) - 1))


@dataclass(frozen=True, kw_only=True)
class CTranslate2Model:
    """A model of the specification ``spec``. ``settings``: its scalars by name."""

    path: Path
    spec: str
    revision: int
    settings: Fields
    weights: CTranslate2Weights


def is_ctranslate2(path: Path) -> bool:
    """Whether ``path`` starts with a version and the name of a specification."""
    with path.open("rb") as file:
        return _HEAD.match(file.read(_HEAD_BYTES)) is not None


def read_ctranslate2(path: Path) -> CTranslate2Model:
    """Maps ``path`` into memory and reads the names, types and shapes of its variables.

    Raises:
        SourceError: unreadable, of another version, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # mmap rejects empty files
        raise SourceError(f"{path}: {error}") from error
    cursor = Cursor(data, path.name)
    version = cursor.unsigned("I", "version")
    if version != VERSION:
        raise SourceError(f"{path.name}: CTranslate2's binary version {version}, not {VERSION}")
    spec = _read_name(cursor, "name of the specification")
    revision = cursor.unsigned("I", "revision")
    variables = _read_variables(cursor)
    aliases = _read_aliases(cursor, variables)
    if cursor.num_bytes_left:
        raise SourceError(f"{path.name}: {cursor.num_bytes_left} bytes after the last alias")
    scalars = {name: v.read().item() for name, v in variables.items() if not v.shape}
    return CTranslate2Model(
        path=path,
        spec=spec,
        revision=revision,
        settings=Fields(scalars, path.name),
        weights=CTranslate2Weights(variables, aliases, path.name),
    )


def _read_name(cursor: Cursor, what: str) -> str:
    text = cursor.text(cursor.unsigned("H", f"length of the {what}"), what)
    if len(text) < 2 or text.find("\0") != len(text) - 1:
        raise SourceError(f"{cursor.origin}: {what} {text!r} does not end with its only NUL")
    return text[:-1]


def _read_variables(cursor: Cursor) -> dict[str, Variable]:
    count = cursor.unsigned("I", "number of variables")
    cursor.check_count(count, _MIN_VARIABLE_BYTES, "variables")
    variables = [_read_variable(cursor) for _ in range(count)]
    by_name = {variable.name: variable for variable in variables}
    if len(by_name) != count:
        raise SourceError(f"{cursor.origin}: two variables have the same name")
    return by_name


def _read_variable(cursor: Cursor) -> Variable:
    name = _read_name(cursor, "name of a variable")
    num_dimensions = cursor.unsigned("B", name)
    if num_dimensions > _MAX_DIMENSIONS:
        raise SourceError(f"{cursor.origin}: {name} has {num_dimensions} dimensions")
    shape = tuple(map(int, cursor.numbers("I", num_dimensions, f"shape of {name}")))
    if 0 in shape:
        raise SourceError(f"{cursor.origin}: {name} has the shape {list(shape)}")
    kind = cursor.unsigned("B", f"type of {name}")
    if kind >= len(TYPES):
        raise SourceError(f"{cursor.origin}: {name} has the unknown type {kind}")
    num_bytes = cursor.unsigned("I", f"size of {name}")
    # The field for the size overflows for variables of 4 GiB or more.
    needed = math.prod(shape) * TYPES[kind].itemsize
    if num_bytes != needed:
        raise SourceError(
            f"{cursor.origin}: {name} has {num_bytes} bytes, but its shape {list(shape)} and type "
            f"{TYPES[kind]} need {needed}"
        )
    return Variable(name, shape, TYPES[kind], cursor.bytes(num_bytes, name))


def _read_aliases(cursor: Cursor, variables: Mapping[str, Variable]) -> dict[str, str]:
    """The variable of each alias.

    An alias takes a few bytes of the file but may take much memory, so aliases together may not be
    larger than the variables.
    """
    count = cursor.unsigned("I", "number of aliases")
    cursor.check_count(count, _MIN_ALIAS_BYTES, "aliases")
    aliases: dict[str, str] = {}
    for _ in range(count):
        alias = _read_name(cursor, "alias")
        name = _read_name(cursor, f"variable of {alias}")
        if name not in variables or alias in variables or alias in aliases:
            raise SourceError(f"{cursor.origin}: {alias} cannot be an alias of {name}")
        aliases[alias] = name
    num_bytes = sum(len(variable.data) for variable in variables.values())
    num_alias_bytes = sum(len(variables[name].data) for name in aliases.values())
    if num_alias_bytes > num_bytes:
        raise SourceError(
            f"{cursor.origin}: {count} aliases of {num_alias_bytes} bytes, more than the "
            f"{num_bytes} of all variables"
        )
    return aliases
