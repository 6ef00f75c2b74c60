"""``scripts/prune_gpu_code.py`` on bytes in the format of a library's GPU code."""

import struct

from scripts.prune_gpu_code import containers, prune

PTX, CODE = 1, 2


def entry(kind: int, architecture: int, content: bytes) -> bytes:
    return struct.pack("<HHIQ12xI", kind, 0x101, 32, len(content), architecture) + content


def container(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


ONE = container(entry(CODE, 80, b"code of 80"), entry(CODE, 90, b"code of 90"))
OTHER = container(entry(PTX, 86, b"text of 86"), entry(CODE, 75, b"code of 75"))
BOTH = container(entry(CODE, 90, b"more of 90"), entry(PTX, 90, b"text of 90"))
DATA = b"before" + ONE + b"between" + OTHER + BOTH + b"after"


def test_entries_are_found() -> None:
    found = [
        [(e.kind, e.architecture, DATA[e.start : e.stop]) for e in c] for c in containers(DATA)
    ]
    assert found == [
        [(CODE, 80, b"code of 80"), (CODE, 90, b"code of 90")],
        [(PTX, 86, b"text of 86"), (CODE, 75, b"code of 75")],
        [(CODE, 90, b"more of 90"), (PTX, 90, b"text of 90")],
    ]


def test_code_of_one_architecture_stays() -> None:
    pruned = bytes(prune(DATA, 90))
    expected = DATA
    for dropped in (b"code of 80", b"code of 75", b"text of 90"):
        expected = expected.replace(dropped, bytes(len(dropped)))
    assert pruned == expected


def test_a_container_without_code_keeps_its_text() -> None:
    assert b"text of 86" in prune(OTHER, 90)


def test_other_data_that_looks_like_a_container_stays() -> None:
    data = DATA + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 10**6) + b"the end"
    assert bytes(prune(data, 90)).endswith(b"the end")
