"""Raw HTTP/1.1 streams of clients that leave or do not read."""

import json
import socket
import struct

from tests.faults.serving import DECODER
from tests.frontends.http.raw import post

# The size of the kernel's buffer, which the kernel doubles.
RECEIVE_BYTES = 4096


def open_completion(port: int, **fields: object) -> socket.socket:
    """Requests a long stream of a completion, and reads the status line, which is 200."""
    body = {"model": DECODER, "prompt": "7,", "stream": True, "ignore_eos": True, "max_tokens": 240}
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    opened.settimeout(60)
    opened.connect(("127.0.0.1", port))
    opened.sendall(post("/v1/completions", json.dumps(body | fields).encode()))
    status = b""
    while not status.endswith(b"\n"):
        byte = opened.recv(1)
        assert byte, "the server closed the connection"
        status += byte
    assert status.split()[1] == b"200", status
    return opened


def leave(opened: socket.socket, how: str) -> None:
    """Closes a connection: ``close``, ``half-close`` (no more is sent) or ``reset``."""
    if how == "half-close":
        opened.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    opened.close()
