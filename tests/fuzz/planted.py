"""A target with a planted defect: fails on three bytes that no seed contains."""

from collections.abc import Iterator

SIZE = 16


def run(data: bytes) -> None:
    if data[:1] == b"b" and data[1:2] == b"u" and data[2:3] == b"g":
        raise ZeroDivisionError


def seeds() -> Iterator[bytes]:
    yield b"mug"
