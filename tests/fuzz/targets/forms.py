"""Multipart forms with recordings: their boundaries, heads, names and values."""

import json
from collections.abc import Iterator
from contextlib import suppress

from server.frontends.http.multipart import split_parts
from tests.fuzz.draw import Draw
from tests.fuzz.service import service
from tests.recordings import tone, wav

SIZE = 2048
MAX_PARTS = 64
PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations", "/translate")
BOUNDARIES = ("a", "--", '"x y"', "", "a" * 300, "é")
RECORDING = wav(tone(0.05, 8_000), 8_000)
FIELDS = (
    ("language", "de"),
    ("prompt", "Triune"),
    ("temperature", "1"),
    ("response_format", "verbose_json"),
    ("timestamp_granularities[]", "segment"),
    ("stream", "true"),
    ("beam_size", "2"),
    ("q", "a"),
)


def run(data: bytes) -> None:
    """Bytes that choose the route and the boundary; the rest is the body."""
    draw = Draw(data)
    path, boundary = draw.choice(PATHS), draw.choice(BOUNDARIES)
    body = draw.rest()
    content_type = f"multipart/form-data; boundary={boundary}"
    parts = None
    with suppress(ValueError):
        parts = split_parts(body, content_type, MAX_PARTS)
    if parts is not None:
        delimiter = b"\r\n--" + boundary.strip('"').encode("latin-1")
        assert len(parts) <= MAX_PARTS
        assert sum(len(part.data) for part in parts) <= len(body)
        assert not any(delimiter in part.data for part in parts)
    running = service()
    route = next(route for route in running.routes if route.path == path)
    status, answer = running.post(route, body, content_type=content_type)
    assert status in (200, 400, 404), (path, body, answer)
    if status != 200:
        error = json.loads(answer)["error"]
        assert (error if isinstance(error, str) else error["message"]).isprintable(), error


def seeds() -> Iterator[bytes]:
    for path in range(len(PATHS)):
        for index, (name, value) in enumerate(FIELDS):
            boundary = index % 3
            line = f"--{BOUNDARIES[boundary]}".replace('"', "").encode()
            start = path.to_bytes(2, "little") + boundary.to_bytes(2, "little")
            fields = [_field(line, name, value.encode()), _field(line, "model", b"speech")]
            file = _field(line, 'file"; filename="a.wav', RECORDING)
            yield start + b"".join([*fields, file]) + line + b"--\r\n"
            yield start + b"".join(fields) + line + b"--"


def _field(line: bytes, name: str, value: bytes) -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"'.encode()
    return line + b"\r\n" + head + b"\r\n\r\n" + value + b"\r\n"
