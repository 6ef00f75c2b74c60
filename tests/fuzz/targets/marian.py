"""Marian models, and the YAML configuration inside a model."""

import struct
from collections.abc import Iterator

import numpy as np

from export.errors import ExportError
from export.readers.marian import is_marian, read_marian
from tests.export.importers.marian_files import CONFIG, write_binary
from tests.fuzz.files import content_of, rewrite, scratch

SIZE = 1024


def run(data: bytes) -> None:
    """First byte: whether the rest is a model file or the configuration inside one."""
    if not data:
        return
    content = _with_config(data[1:]) if data[0] & 1 else data[1:]
    path = rewrite(scratch("marian") / "model.bin", content)
    is_marian(path)
    try:
        file = read_marian(path)
    except ExportError as error:
        str(error).encode()
        return
    for weight in file.weights.values():
        assert weight.numel() <= len(content)
    for name in file.config:
        for read in (file.config.integers, file.config.number, file.config.text):
            try:
                read(name)
            except ExportError as error:
                str(error).encode(errors="surrogateescape")


def seeds() -> Iterator[bytes]:
    tensors = {
        "Wemb": np.ones((4, 3), np.float32),
        "decoder_W": np.ones((3, 2), np.float32),
        "decoder_b": np.zeros((1, 2), np.float32),
    }
    for quantize in (False, True):
        config = {"type": "transformer", "dim-emb": 3}
        yield b"\0" + content_of(
            "model.bin",
            lambda path, quantize=quantize, config=config: write_binary(
                path, tensors, config, quantize=quantize
            ),
        )
    yield b"\1" + "".join(f"{name}: {value}\n" for name, value in CONFIG.items()).encode()
    for text in ("a: [1, 2.5, true, ~]", "d: 2001-12-14t21:59:43.10-05:00", "x: !!int 0x1F"):
        yield b"\1" + text.encode()


def _with_config(text: bytes) -> bytes:
    name = b"special:model.yml\0"
    head = struct.pack("<QQ4Q", 1, 1, len(name), 0x101, 1, len(text))
    return head + name + struct.pack("<iQ", max(1, len(text)), 0) + text
