"""Zeroes the machine code of other GPUs in a library, so that it compresses well.

    python -m scripts.prune_gpu_code LIBRARY ARCHITECTURE

``ARCHITECTURE``: a compute capability without its point, such as 90. The library then runs on that
GPU alone. A library holds containers; each has entries: PTX, or code for one architecture. A
container without code for the architecture keeps its PTX, which the driver compiles.

Facts: the section ``.nv_fatbin`` as ``cuobjdump --list-elf`` reports it.
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CONTAINER = struct.pack("<I", 0xBA55ED50)
_CONTAINER_HEADER = struct.Struct("<IHHQ")  # magic, version, size of this header, bytes of entries
_ENTRY_HEADER = struct.Struct(
    "<HHIQ12xI"
)  # kind, version, size of this header, bytes, architecture
_PTX, _CODE = 1, 2


class Entry(NamedTuple):
    """One entry of a container; ``start`` and ``stop`` are the bounds of its content."""

    kind: int
    architecture: int
    start: int
    stop: int


def containers(data: bytes) -> Iterator[list[Entry]]:
    """The entries of each container in ``data``."""
    position = data.find(_CONTAINER)
    while position >= 0:
        _, _, header, size = _CONTAINER_HEADER.unpack_from(data, position)
        stop = position + header + size
        if header != _CONTAINER_HEADER.size or stop > len(data):
            position = data.find(_CONTAINER, position + 1)
            continue
        entries, at = [], position + header
        while at < stop:
            kind, _, entry_header, length, architecture = _ENTRY_HEADER.unpack_from(data, at)
            start = at + entry_header
            entries.append(Entry(kind, architecture, start, start + length))
            at = start + length
        yield entries
        position = data.find(_CONTAINER, stop)


def prune(data: bytes, architecture: int) -> bytearray:
    """``data`` with zeros for all code that this architecture does not need."""
    pruned = bytearray(data)
    for entries in containers(data):
        has_code = any(e.kind == _CODE and e.architecture == architecture for e in entries)
        for kind, of, start, stop in entries:
            is_needed = of == architecture if kind == _CODE else not has_code
            if not is_needed:
                pruned[start:stop] = bytes(stop - start)
    return pruned


if __name__ == "__main__":
    library = Path(sys.argv[1])
    library.write_bytes(prune(library.read_bytes(), int(sys.argv[2])))
