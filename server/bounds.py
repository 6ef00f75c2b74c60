"""Bounds of every field of a request: declared beside the dataclass field, checked in one place.

``python -m scripts.bounds`` renders them as a table. Costs that need the model are checked by the
service in this order, each before the work that it bounds: bytes, tokens, windows, the reply.
"""

from collections.abc import Sequence, Sized
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

from server.errors import InvalidArgumentError

_KEY = "bounds"

MAX_INTEGER = 2**31 - 1
# Of a request: texts, and bytes of text to tokenize. What is repeated for each text, such as the
# query for each document, counts each time.
MAX_TEXTS = 4096
MAX_REQUEST_BYTES = 16 << 20
# Of a request to an encoder, overlaps and special tokens included.
MAX_WINDOWS = 4096
MAX_WINDOW_TOKENS = 1 << 20
# Of a request to a decoder: as many as the queue of a model holds by default.
MAX_TOKEN_IDS = 1 << 19
# Of a reply: tokens, log-probabilities, labels or spans; and numbers of 4 bytes in vectors and
# matrices.
MAX_REPLY_VALUES = 1 << 19
MAX_REPLY_NUMBERS = 8 << 20
# Vectors of a model with one for each token: numbers of 4 bytes that a request holds until its
# documents are compared with its query, and multiplications of the comparison.
MAX_VECTOR_NUMBERS = 1 << 26
MAX_SIMILARITY_PRODUCTS = 1 << 33
# Weights of a sparse vector.
MAX_ACTIVE_DIMS = 1024
# Attention weights of one text of an encoder that are held at a time, 4 bytes each.
MAX_ATTENTION_WEIGHTS = 1 << 26
# Logits that a request holds until all of its masks are computed, 4 bytes each.
MAX_LOGITS = 1 << 26
# Of a request: images, the bytes of each file, and the pixels of each and of all together. The
# largest one takes 100 MB while it is decoded.
MAX_IMAGES = 256
MAX_IMAGE_BYTES = 4 << 20
MAX_IMAGE_PIXELS = 1 << 25
MAX_REQUEST_PIXELS = 1 << 27
# Of a request: the bytes of its recording, and how long that is.
MAX_AUDIO_BYTES = 25 << 20
MAX_AUDIO_SECONDS = 7200
# Decoded images and recordings of all calls in progress, as their models take them.
MAX_DECODED_BYTES = 1 << 29
# Entries of a list of options, and bytes of each.
MAX_ENTRIES = 1024
MAX_ENTRY_BYTES = 256
MAX_NAME_BYTES = 256
MAX_LABELS = 100  # that a request brings with it
MAX_MESSAGES = 1024
# Of a text that is put before or after each input.
MAX_PREFIX_BYTES = 4096
MAX_BAD_WORD_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds. ``excludes_low``: ``low`` itself is out of bounds."""

    low: float
    high: float
    excludes_low: bool = False

    def __str__(self) -> str:
        high = f"{self.high:,}" if isinstance(self.high, int) else f"{self.high:,.12g}"
        return f"{'more than ' * self.excludes_low}{self.low:,g} … {high}"

    def check(self, name: str, value: float) -> None:
        """Raises ``InvalidArgumentError`` if ``value`` is out of bounds or NaN."""
        if not self.low <= value <= self.high:  # true for NaN, and for integers of any size
            raise InvalidArgumentError(name, f"{value} is not in {self.low} … {self.high}")
        if self.excludes_low and value == self.low:
            raise InvalidArgumentError(name, f"{value} is not in ({self.low:g}, {self.high}]")


def bounded(default: Any, low: float, high: float, *, excludes_low: bool = False) -> Any:
    """A dataclass field that :func:`check_fields` checks. A value of ``None`` is not checked."""
    bounds = Bounds(low, high, excludes_low)
    if default is not None:
        bounds.check("default", default)
    return field(default=default, metadata={_KEY: bounds})


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a text or a list. ``None``: not bounded here.

    ``max_items``: of a list. ``max_bytes``: of a text, or of each, in UTF-8. ``max_total``: ids of
    all rows of a list together.
    """

    max_items: int | None = None
    max_bytes: int | None = None
    max_total: int | None = None

    def __str__(self) -> str:
        parts = [
            (self.max_items, "entries"),
            (self.max_total, "ids in all"),
            (self.max_bytes, "bytes" if self.max_items is None else "bytes each"),
        ]
        return ", ".join(f"{limit:,} {unit}" for limit, unit in parts if limit is not None)

    def check_count(self, name: str, items: Sized) -> None:
        """Raises ``InvalidArgumentError`` if a list has too many items. Reads none of them."""
        if self.max_items is not None and len(items) > self.max_items:
            raise InvalidArgumentError(name, f"{len(items)} given, at most {self.max_items}")

    def check_total(self, name: str, counts: Sequence[int]) -> None:
        """Raises ``InvalidArgumentError`` if all lists of a list together have too many items."""
        if self.max_total is not None and sum(counts) > self.max_total:
            raise InvalidArgumentError(name, f"{sum(counts)} in all, at most {self.max_total}")

    def check(self, name: str, value: Any) -> None:
        """Raises ``InvalidArgumentError``, which names the text or list that is too large."""
        if isinstance(value, str):
            self._check_text(name, value)
            return
        self.check_count(name, value)
        if self.max_total is not None:
            self.check_total(name, [len(row) for row in value])
        if self.max_bytes is not None:
            for index, text in enumerate(value):
                self._check_text(f"{name}[{index}]", text)

    def _check_text(self, name: str, text: str | bytes) -> None:
        if self.max_bytes is None or 4 * len(text) <= self.max_bytes:
            return
        is_over = len(text) > self.max_bytes
        if is_over or (isinstance(text, str) and len(text.encode()) > self.max_bytes):
            raise InvalidArgumentError(name, f"has more than {self.max_bytes} bytes")


@dataclass(frozen=True, slots=True)
class Rule:
    """A bound that depends on the model or the configuration, and is checked by the service."""

    text: str

    def __str__(self) -> str:
        return self.text


def sized(
    default: Any = MISSING,
    *,
    max_items: int | None = None,
    max_bytes: int | None = None,
    max_total: int | None = None,
) -> Any:
    """A dataclass field of text or of a list, which :func:`check_fields` checks."""
    return field(default=default, metadata={_KEY: Size(max_items, max_bytes, max_total)})


def ruled(text: str, default: Any = MISSING, *, max_items: int | None = None) -> Any:
    """A dataclass field whose bound is ``text``. ``max_items``: of a list; checked as a size."""
    metadata = {_KEY: Rule(text)}
    if max_items is not None:
        metadata = {_KEY: _SizedRule(text, Size(max_items))}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class _SizedRule(Rule):
    size: Size

    def __str__(self) -> str:
        return f"{self.size}, {self.text}"


def bound_of(option: Any) -> Bounds | Size | Rule | None:
    """The bound that a dataclass field declares."""
    found: Bounds | Size | Rule | None = option.metadata.get(_KEY)
    return found


def size_of(option: Any) -> Size | None:
    """The size that a dataclass field declares; ``None`` if it declares none."""
    bound = bound_of(option)
    if isinstance(bound, _SizedRule):
        return bound.size
    return bound if isinstance(bound, Size) else None


class _Field(NamedTuple):
    """A field of a dataclass.

    ``default``: needs no check. ``bound``: of numbers, texts or lists. ``is_group``: of a dataclass
    whose fields have no prefix in errors.
    """

    name: str
    default: Any
    bound: Bounds | Size | None
    is_group: bool


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            option.name,
            option.default,
            bound if isinstance(bound := bound_of(option), Bounds) else size_of(option),
            option.default is not None,
        )
        for option in fields(kind)
    )


_PLAIN = (str, int, float)
"""Types of most values, checked first, since ``is_dataclass`` is slow."""


def check_fields(request: Any, path: str = "") -> None:
    """Checks sizes and bounds of all fields of a dataclass, those of nested ones included.

    ``path``: prefix of field names in errors.

    Raises:
        InvalidArgumentError: names the first field that is out of bounds or too large.
    """
    for name, default, bound, is_group in _fields(request.__class__):
        value = getattr(request, name)
        if value is default or value is None:
            continue
        if bound is not None:
            bound.check(path + name, value)
        if isinstance(value, tuple):
            if value and _has_bounds(value[0]):
                for index, item in enumerate(value):
                    check_fields(item, f"{path}{name}[{index}].")
        elif not isinstance(value, _PLAIN) and is_dataclass(value):
            check_fields(value, path if is_group else f"{path}{name}.")


def _has_bounds(item: Any) -> bool:
    return is_dataclass(item) and any(
        option.bound is not None for option in _fields(item.__class__)
    )


INPUT_BYTES = "512 KiB each"
"""The bound of texts that ``ServerConfig.max_input_bytes`` bounds."""


def check_name(field_name: str, name: str) -> None:
    """Rejects a name of more than :data:`MAX_NAME_BYTES`."""
    Size(max_bytes=MAX_NAME_BYTES).check(field_name, name)
