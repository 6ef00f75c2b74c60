"""Server processes for recording and replay."""

import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.serving import server_process

FOLDER = Path(__file__).parent
ARCHIVE = FOLDER / "bundles.tar.xz"
RECORDING = FOLDER / "recording.jsonl"
TOKENS = "alice:alice-token\nbob:bob-token\ncarol:carol-token\n"

# Both options accept 48 sequences with 5120 tokens in total.
OPTIONS = {
    1: ("--lanes", "1", "--threads", "1", "--max-queue", "40", "--max-queue-tokens", "3072"),
    2: ("--lanes", "2", "--threads", "2", "--max-queue", "32", "--max-queue-tokens", "1024"),
}
SIZES = ("--slots", "8", "--max-length", "128")
LIMITS = ("--client-tokens-per-second", "1", "--client-burst-tokens", "64")

_ADMIN = re.compile(r"admin on port (\d+)")


@dataclass(frozen=True)
class Targets:
    """Addresses of one server. ``admin``: empty without an admin listener."""

    main: str
    admin: str = ""


def unpack(folder: Path) -> Path:
    """Unpacks the bundles of an earlier version into ``folder``."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@contextmanager
def open_server(bundles: Path, num_lanes: int) -> Iterator[Targets]:
    """A server without access control."""
    with server_process(bundles, *SIZES, *OPTIONS[num_lanes]) as server:
        yield Targets(server.target)


@contextmanager
def guarded_server(bundles: Path, folder: Path) -> Iterator[Targets]:
    """A server with access tokens, rate limits per client and an admin listener."""
    tokens = folder / "tokens"
    tokens.write_text(TOKENS)
    options = ("--tokens", str(tokens), "--admin", "127.0.0.1:0", *LIMITS)
    with server_process(bundles, *SIZES, *OPTIONS[1], *options) as server:
        port = _ADMIN.search("".join(server.log))
        assert port is not None, "the server does not name its admin port"
        yield Targets(server.target, f"127.0.0.1:{port[1]}")
