"""Long texts, line breaks and escapes in every text field of every method."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.fuzz.draw import Draw
from tests.fuzz.service import CALLS, service
from tests.fuzz.targets import requests

SIZE = 24
_LENGTH = 20_000  # characters
_MAX_DEPTH = 4

Path = tuple[str, ...]
"""Field names from the request to a text field."""


def run(data: bytes) -> None:
    """Two bytes each: the method, the model and the field. Rest: the characters to repeat."""
    draw = Draw(data)
    call = draw.below(len(CALLS))
    method, kind, models = CALLS[call]
    request: Any = kind.FromString(requests.valid(call))
    request.model = draw.choice(models)
    paths = text_fields(kind.DESCRIPTOR)
    path = paths[draw.below(len(paths))]
    characters = draw.rest_as_text() or "m"
    _set(request, path, characters * (_LENGTH // len(characters)))
    service().call(method, request)


def seeds() -> Iterator[bytes]:
    for call, (_, kind, models) in enumerate(CALLS):
        for index in range(len(text_fields(kind.DESCRIPTOR))):
            for characters in ("m", "\x1b[2J\n", "語", "("):
                numbers = (call, index % len(models), index)
                yield b"".join(n.to_bytes(2, "little") for n in numbers) + characters.encode()


@cache
def text_fields(descriptor: Any, depth: int = 0) -> tuple[Path, ...]:
    """The paths of all text fields of a message, those of nested messages included."""
    paths: list[Path] = []
    for field in descriptor.fields:
        nested = field.message_type
        if nested is None:
            if field.type == field.TYPE_STRING:
                paths.append((field.name,))
        elif not nested.GetOptions().map_entry and depth < _MAX_DEPTH:
            paths += [(field.name, *path) for path in text_fields(nested, depth + 1)]
    return tuple(paths)


def _set(message: Any, path: Path, text: str) -> None:
    """Sets a text field; a repeated one gets one more entry."""
    name, *rest = path
    is_repeated = message.DESCRIPTOR.fields_by_name[name].is_repeated
    if not rest:
        if is_repeated:
            getattr(message, name).append(text)
        else:
            setattr(message, name, text)
        return
    holder = getattr(message, name)
    _set(holder.add() if is_repeated else holder, tuple(rest), text)
