"""Bounds of every request field: declared beside the dataclass field, checked in one place.

``python -m scripts.bounds`` renders them as a table. The service checks costs that depend on the
model in this order, each before the work that it bounds: bytes, tokens, windows, the reply.
"""

from collections.abc import Sequence, Sized
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

from server.errors import InvalidArgumentError

_KEY = "bounds"

MAX_INTEGER = 2**31 - 1
# Maximum texts, and bytes of text to tokenize, per request. Text that is tokenized repeatedly, such
# as the query with each document, counts each time.
MAX_TEXTS = 4096
MAX_REQUEST_BYTES = 16 << 20
# Maximum windows, and tokens in all windows (overlaps and special tokens included), per request to
# an encoder.
MAX_WINDOWS = 4096
MAX_WINDOW_TOKENS = 1 << 20
# Maximum token ids per request to a decoder: as many as a model's queue holds by default.
MAX_TOKEN_IDS = 1 << 19
# Maximum values (tokens, log-probabilities, labels or spans) per reply; and maximum numbers of 4
# bytes in its vectors and matrices.
MAX_REPLY_VALUES = 1 << 19
MAX_REPLY_NUMBERS = 8 << 20
# Reranking with a multi-vector (late-interaction) model: maximum numbers of 4 bytes that a request
# holds until its documents are compared with its query, and multiplications of the comparison.
MAX_VECTOR_NUMBERS = 1 << 26
MAX_SIMILARITY_PRODUCTS = 1 << 33
# Maximum non-zero weights of a sparse vector.
MAX_ACTIVE_DIMS = 1024
# Maximum attention weights of 4 bytes that are held at a time for one text of an encoder.
MAX_ATTENTION_WEIGHTS = 1 << 26
# Maximum logits of 4 bytes that a request holds until all of its masks are computed.
MAX_LOGITS = 1 << 26
# Maximum images per request, bytes per file, pixels per image, and pixels of all images together.
# The largest image takes 100 MB while it is decoded.
MAX_IMAGES = 256
MAX_IMAGE_BYTES = 4 << 20
MAX_IMAGE_PIXELS = 1 << 25
MAX_REQUEST_PIXELS = 1 << 27
# Maximum size and duration of a recording, and recordings per request to an encoder.
MAX_RECORDINGS = 64
MAX_AUDIO_BYTES = 25 << 20
MAX_AUDIO_SECONDS = 7200
# Maximum bytes of decoded images and recordings, in their models' input format, over all calls in
# progress.
MAX_DECODED_BYTES = 1 << 29
# Maximum entries of an option that is a list, and bytes per entry.
MAX_ENTRIES = 1024
MAX_ENTRY_BYTES = 256
MAX_NAME_BYTES = 256
MAX_LABELS = 100  # candidate labels in a request
MAX_MESSAGES = 1024
MAX_PARTS = 1024  # of a message
# Maximum tools of a conversation; and bytes of all of them and the template's variables, as JSON.
MAX_TOOLS = 128
MAX_TOOLS_BYTES = 1 << 16
# Maximum bytes of the arguments of all tool calls in a conversation.
MAX_ARGUMENTS_BYTES = 1 << 20
# Maximum bytes of a text that is put before or after each input.
MAX_PREFIX_BYTES = 4096
MAX_BAD_WORD_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive bounds. With ``excludes_low``, ``low`` itself is out of bounds."""

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
    """The maximum size of a text or a list. ``None`` sets no bound.

    ``max_items`` bounds the length of a list, ``max_bytes`` the UTF-8 size of the text or of each
    text in the list, and ``max_total`` the ids in all rows of a list of lists together.
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
        """Raises ``InvalidArgumentError`` if a list has too many items. Does not read the items."""
        if self.max_items is not None and len(items) > self.max_items:
            raise InvalidArgumentError(name, f"{len(items)} given, at most {self.max_items}")

    def check_total(self, name: str, counts: Sequence[int]) -> None:
        """Raises ``InvalidArgumentError`` if nested lists have too many items in all."""
        if self.max_total is not None and sum(counts) > self.max_total:
            raise InvalidArgumentError(name, f"{sum(counts)} in all, at most {self.max_total}")

    def check(self, name: str, value: Any) -> None:
        """Raises ``InvalidArgumentError``, naming the text or list, if ``value`` is too large."""
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
    """A bound that depends on the model or the configuration; the service checks it."""

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
    """A dataclass field that is a text or a list, whose size :func:`check_fields` checks."""
    return field(default=default, metadata={_KEY: Size(max_items, max_bytes, max_total)})


def ruled(text: str, default: Any = MISSING, *, max_items: int | None = None) -> Any:
    """A dataclass field whose bound ``text`` describes; ``max_items`` also bounds its length."""
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
    """The bound that a dataclass field declares; ``None`` if it declares none."""
    found: Bounds | Size | Rule | None = option.metadata.get(_KEY)
    return found


def size_of(option: Any) -> Size | None:
    """The size that a dataclass field declares; ``None`` if it declares none."""
    bound = bound_of(option)
    if isinstance(bound, _SizedRule):
        return bound.size
    return bound if isinstance(bound, Size) else None


class _Field(NamedTuple):
    """A dataclass field, prepared for :func:`check_fields`.

    A value that is the ``default`` needs no check. ``bound`` is that of a number, text or list.
    ``is_group`` means: if the value is a dataclass, its fields have no prefix in errors.
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
    """Checks sizes and bounds of all fields of a dataclass and of the dataclasses in it.

    ``path`` is the prefix of field names in errors.

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
"""Describes the bound of texts that ``ServerConfig.max_input_bytes`` sets."""


def check_name(field_name: str, name: str) -> None:
    """Rejects a name of more than :data:`MAX_NAME_BYTES`."""
    Size(max_bytes=MAX_NAME_BYTES).check(field_name, name)
