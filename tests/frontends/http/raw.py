"""HTTP without a library: what no well-behaved client sends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class Connection:
    """A TCP connection to a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """The status of the next response; 0 if the server closed the connection instead."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            return 0
        return int(line.split()[1]) if line else 0

    async def closed(self) -> bytes:
        """What the server sends until it closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def connect(port: int, receive_bytes: int = 1 << 20) -> AsyncIterator[Connection]:
    """Connects to a port of this machine. ``receive_bytes``: what the kernel receives unread."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    opened.setblocking(False)
    await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=opened)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A whole request with a content length."""
    lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + body


async def settle(port: int) -> None:
    """Returns when a server in this event loop has read what was sent to it before."""
    async with connect(port) as other:
        await other.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await other.status()
