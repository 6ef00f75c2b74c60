"""HTTP/2 by hand (RFC 9113): connections that no gRPC client would make."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY, HEADERS, RST_STREAM = 0x4, 0x6, 0x7, 0x1, 0x3
END_HEADERS = 0x4
ENHANCE_YOUR_CALM = 0xB


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """Section 4.1."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header field that is not indexed (RFC 7541, section 6.2.2); short ones only."""
    parts = b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
    return b"\x00" + parts


@contextmanager
def connection(port: int) -> Iterator[socket.socket]:
    """One that has said what HTTP/2 asks it to say."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as made:
        made.sendall(PREFACE + frame(SETTINGS))
        yield made


def open_stream(stream: int, path: str) -> bytes:
    """A call that never sends its request."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(literal(name, value) for name, value in fields.items())
    return frame(HEADERS, block, END_HEADERS, stream)


def frames(made: socket.socket) -> Iterator[tuple[int, bytes]]:
    """What the server sends, until it closes the connection."""
    with made.makefile("rb") as stream:
        try:
            while len(header := stream.read(9)) == 9:
                size = int.from_bytes(header[:3], "big")
                yield header[3], stream.read(size)
        except ConnectionError:
            return
