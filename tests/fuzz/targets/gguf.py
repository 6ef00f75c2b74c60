"""GGUF files: metadata and all weights."""

from collections.abc import Iterator

import gguf
import numpy as np

from export.errors import ExportError
from export.readers.gguf import is_gguf, read_gguf
from tests.fuzz.files import content_of, rewrite, scratch

SIZE = 2048


def run(data: bytes) -> None:
    path = rewrite(scratch("gguf") / "model.gguf", data)
    is_gguf(path)
    try:
        file = read_gguf(path)
        for weight in file.weights.values():
            # Upper bound: one byte encodes at most 8 numbers of 4 bytes.
            assert weight.numel() <= 8 * len(data), "weights are no larger than the file allows"
    except ExportError as error:
        str(error).encode()
        return
    for name in file.metadata:
        for read in (file.metadata.integer, file.metadata.number, file.metadata.texts):
            try:
                read(name)
            except ExportError as error:
                str(error).encode()


def seeds() -> Iterator[bytes]:
    for version in (3,):
        del version
        yield content_of("plain.gguf", lambda path: _write(path, ("F32", "F16")))
        yield content_of("blocks.gguf", lambda path: _write(path, ("Q8_0", "Q4_0", "Q5_1")))
        yield content_of("large.gguf", lambda path: _write(path, ("Q4_K", "Q6_K"), width=256))
    yield b"GGUF" + (3).to_bytes(4, "little") + bytes(16)


def _write(path, types, width: int = 32) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 1e4)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "é"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0])
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    rng = np.random.default_rng(0)
    for name in types:
        kind = gguf.GGMLQuantizationType[name]
        shape = gguf.quant_shape_to_byte_shape((2, width), kind)
        raw = rng.integers(0, 100, shape, np.uint8)
        if name in ("F32", "F16"):
            raw = np.zeros((2, 4), np.float32 if name == "F32" else np.float16)
            writer.add_tensor(f"{name}.weight", raw)
        else:
            writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
