"""Raw HTTP/2 (RFC 9113) for connections that no gRPC client would make."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY, HEADERS, RST_STREAM = 0x4, 0x6, 0x7, 0x1, 0x3
END_HEADERS = 0x4
ENHANCE_YOUR_CALM = 0xB


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """Encodes a frame (section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """Encodes a short header field without indexing (RFC 7541, section 6.2.2)."""
    parts = b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
    return b"\x00" + parts


@contextmanager
def connection(port: int) -> Iterator[socket.socket]:
    """Opens a connection and sends the HTTP/2 preface and settings."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(PREFACE + frame(SETTINGS))
        yield sock


def open_stream(stream: int, path: str) -> bytes:
    """The headers of a call that never sends its request."""
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


def frames(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Frames (type, payload) from the server until it closes the connection."""
    with sock.makefile("rb") as stream:
        try:
            while len(header := stream.read(9)) == 9:
                size = int.from_bytes(header[:3], "big")
                yield header[3], stream.read(size)
        except ConnectionError:
            return
