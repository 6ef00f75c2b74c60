"""Searches for slow requests: long texts and lists in every field of every method.

The cost of a request is CPU time per byte of its serialized form. ``python -m tests.fuzz.slowest``
reports the worst of each method.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz.draw import Draw
from tests.fuzz.messages import fill
from tests.fuzz.service import CALLS, MAX_LENGTH, service
from tests.fuzz.targets import requests
from tests.pictures import picture

SIZE = 96
MAX_REPEATS = 400
MAX_INPUT_BYTES = 1 << 19
# Of CPU time, in all threads: a hundred times what the worst request of the seeds takes.
MAX_SECONDS = 10.0
# On the event loop, where nothing else runs meanwhile: of any accepted request.
MAX_LOOP_MICROSECONDS_PER_BYTE = 20.0
# Small requests have a cost of their own.
MIN_BYTES = 1024
_IMAGE = picture(size=(4, 4))
TEXTS = ("a ", "1,", "[MASK] ", "語", "ﷺ", "((", "é\u0301", "3 March 2021 ")


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """CPU seconds of one request, by thread; ``other``: threads of native libraries."""

    method: str
    num_bytes: int
    loop_seconds: float
    tokenize_seconds: float
    other_seconds: float
    is_accepted: bool

    @property
    def seconds(self) -> float:
        return self.loop_seconds + self.tokenize_seconds + self.other_seconds

    @property
    def microseconds_per_byte(self) -> float:
        return 1e6 * self.seconds / max(self.num_bytes, MIN_BYTES)

    @property
    def loop_microseconds_per_byte(self) -> float:
        """The time on the event loop, which everybody shares."""
        return 1e6 * self.loop_seconds / max(self.num_bytes, MIN_BYTES)


def run(data: bytes) -> None:
    """Two bytes: the method. Then the fields to set, and those to repeat."""
    cost = measure(data)
    assert cost.seconds < MAX_SECONDS, cost


def measure(data: bytes) -> MeasuredCost:
    """The cost of the request that ``data`` describes."""
    method, request = request_of(data)
    running = service(MAX_LENGTH, MAX_INPUT_BYTES)
    return measure_call(method, request.ByteSize(), lambda: running.call(method, request))


def measure_call(method: str, num_bytes: int, send: Callable[[], bool]) -> MeasuredCost:
    """The cost of ``send``, a request of ``num_bytes``, which returns whether it was accepted.

    Without garbage collection: whose turn it is does not depend on the request.
    """
    before = _thread_seconds()
    gc.disable()
    try:
        whole = time.process_time()
        is_accepted = send()
        whole = time.process_time() - whole
    finally:
        gc.enable()
    after = _thread_seconds()
    loop, tokenize = (after.get(name, 0.0) - before.get(name, 0.0) for name in ("loop", "tokenize"))
    return MeasuredCost(
        method, num_bytes, loop, tokenize, max(0.0, whole - loop - tokenize), is_accepted
    )


def request_of(data: bytes) -> tuple[str, Any]:
    """A valid request with random options, in which texts and lists are repeated."""
    draw = Draw(data)
    call = draw.below(len(CALLS))
    method, kind, models = CALLS[call]
    request: Any = kind.FromString(requests.valid(call))
    fill(request, draw, chance=draw.choice((0, 16, 64)))
    request.model, request.version = draw.choice(models), ""
    for _ in range(1 + draw.below(3)):
        _repeat(request, draw)
    return method, request


def seeds() -> Iterator[bytes]:
    for call in range(len(CALLS)):
        for repeated in range(6):
            yield b"".join(n.to_bytes(2, "little") for n in (call, 0, 0, 0, repeated, 200, 3, 100))


def _repeat(message: Any, draw: Draw) -> None:
    """Repeats a text, or the entries of a list, in a field of ``message``."""
    descriptor = message.DESCRIPTOR
    field = draw.choice([field for field in descriptor.fields if _can_grow(field)])
    count = 1 + draw.below(MAX_REPEATS)
    if field.is_repeated and field.message_type is None:
        values = list(getattr(message, field.name)) or [_value(field, draw)]
        if _is_text(field) and (form := draw.below(3)):
            values = [(values[0] if form == 1 else _text(draw)) * count]
        message.ClearField(field.name)
        getattr(message, field.name).extend(values[:1] * count if len(values) > 1 else values)
    elif field.is_repeated:
        entries = getattr(message, field.name)
        entry = entries.add() if not entries else entries[0]
        for text in entry.DESCRIPTOR.fields:
            if _is_text(text) and not text.is_repeated:
                setattr(entry, text.name, _text(draw) * (1 + draw.below(MAX_REPEATS)))
        entries.extend([entry] * draw.below(20))
    elif field.message_type is not None:
        _repeat(getattr(message, field.name), draw)
    else:
        setattr(message, field.name, _text(draw) * count)


def _can_grow(field: Any) -> bool:
    if field.name in ("model", "version"):
        return False
    nested = field.message_type
    if nested is None:
        return bool(field.is_repeated or _is_text(field))
    if nested.GetOptions().map_entry:
        return False
    return bool(field.is_repeated or any(map(_can_grow, nested.fields)))


def _is_text(field: Any) -> bool:
    return bool(field.type == field.TYPE_STRING)


def _value(field: Any, draw: Draw) -> Any:
    if field.type == field.TYPE_BYTES:
        return _IMAGE
    return _text(draw) if _is_text(field) else 1


def _text(draw: Draw) -> str:
    return draw.choice(TEXTS)


def _thread_seconds() -> dict[str, float]:
    """CPU seconds of the event loop, which runs in the caller's thread, and of the tokenizer's."""
    seconds = {"loop": time.thread_time()}
    for thread in threading.enumerate():
        if thread.name.startswith("tokenize") and thread.ident is not None:
            clock = time.pthread_getcpuclockid(thread.ident)
            seconds["tokenize"] = seconds.get("tokenize", 0.0) + time.clock_gettime(clock)
    return seconds
