"""Writes small models in CTranslate2's file layout, binary version 6."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from tests.export.importers.support import WORDS, randomise

TYPE_NUMBERS = {
    torch.float32: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
}
SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|yue|>", "<|translate|>"),
    *("<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
FIRST_SPECIAL = len(WORDS)
NUM_TIMESTAMPS = 24
VOCABULARY_SIZE = FIRST_SPECIAL + len(SPECIAL) + NUM_TIMESTAMPS
SETTINGS: Mapping[str, Tensor] = MappingProxyType(
    {
        "decoder/activation": torch.tensor(3, dtype=torch.int8),
        "decoder/alibi": torch.tensor(0, dtype=torch.int8),
        "decoder/alignment_layer": torch.tensor(-1, dtype=torch.int16),
        "decoder/num_heads": torch.tensor(2, dtype=torch.int16),
        "decoder/pre_norm": torch.tensor(1, dtype=torch.int8),
        "decoder/scale_embeddings": torch.tensor(0, dtype=torch.int8),
        "decoder/start_from_zero_embedding": torch.tensor(0, dtype=torch.int8),
        "encoder/num_heads": torch.tensor(4, dtype=torch.int16),
    }
)
ALIASES: Mapping[str, str] = MappingProxyType(
    {"decoder/projection/weight": "decoder/embeddings/weight"}
)


def write_model(
    path: Path,
    variables: Mapping[str, Tensor],
    aliases: Mapping[str, str] = ALIASES,
    *,
    spec: str = "WhisperSpec",
    revision: int = 3,
    version: int = 6,
) -> Path:
    """The file ``path`` with ``variables`` in the order of their names."""
    content = struct.pack("<I", version) + _name(spec)
    content += struct.pack("<II", revision, len(variables))
    for name, value in sorted(variables.items()):
        content += _name(name) + struct.pack("<B", value.ndim)
        content += struct.pack(f"<{value.ndim}I", *value.shape)
        data = value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        content += struct.pack("<BI", TYPE_NUMBERS[value.dtype], len(data)) + data
    content += struct.pack("<I", len(aliases))
    for alias, name in aliases.items():
        content += _name(alias) + _name(name)
    path.write_bytes(content)
    return path


def quantized(variables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As CTranslate2's ``int8_float32``: matrices and convolutions with a scale for each row."""
    result = {}
    for name, value in variables.items():
        result[name] = value
        if value.ndim > 1 and name.endswith("/weight"):
            scale = 127 / value.abs().flatten(1).amax(1)
            steps = value * scale.reshape(-1, *[1] * (value.ndim - 1))
            result[name] = steps.round().to(torch.int8)
            result[f"{name}_scale"] = scale
    return result


def whisper(**changes: Any) -> Any:
    """A small random model of transformers with one layer more in its decoder."""
    config: dict[str, Any] = {
        "vocab_size": VOCABULARY_SIZE,
        "d_model": 32,
        "encoder_layers": 1,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_layers": 2,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 40,
        "num_mel_bins": 16,
        "max_source_positions": 20,
        "max_target_positions": 28,
        "pad_token_id": FIRST_SPECIAL,
        "bos_token_id": FIRST_SPECIAL,
        "eos_token_id": FIRST_SPECIAL,
        "decoder_start_token_id": FIRST_SPECIAL + 1,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    return randomise(WhisperForConditionalGeneration(WhisperConfig(**config | changes)))


def variables_of(model: Any) -> dict[str, Tensor]:
    """The weights and settings of a Whisper by CTranslate2's names."""
    weights = {name.removeprefix("model."): x for name, x in model.state_dict().items()}
    variables = {**SETTINGS, "decoder/embeddings/weight": weights["decoder.embed_tokens.weight"]}

    def copy(target: str, *sources: str, names: tuple[str, str] = ("weight", "bias")) -> None:
        for name, own in zip(names, ("weight", "bias"), strict=True):
            parts = [
                weights.get(f"{source}.{own}", torch.zeros(model.config.d_model))
                for source in sources
            ]
            variables[f"{target}/{name}"] = torch.cat(parts)

    def norm(target: str, source: str) -> None:
        copy(f"{target}/layer_norm", source, names=("gamma", "beta"))

    for number in (1, 2):
        copy(f"encoder/conv{number}", f"encoder.conv{number}")
    for side, count in (("encoder", 1), ("decoder", 2)):
        positions = weights[f"{side}.embed_positions.weight"]
        variables[f"{side}/position_encodings/encodings"] = positions
        norm(side, f"{side}.layer_norm")
        for layer in range(count):
            source, target = f"{side}.layers.{layer}", f"{side}/layer_{layer}"
            own = [f"{source}.self_attn.{letter}_proj" for letter in "qkv"]
            copy(f"{target}/self_attention/linear_0", *own)
            copy(f"{target}/self_attention/linear_1", f"{source}.self_attn.out_proj")
            norm(f"{target}/self_attention", f"{source}.self_attn_layer_norm")
            copy(f"{target}/ffn/linear_0", f"{source}.fc1")
            copy(f"{target}/ffn/linear_1", f"{source}.fc2")
            norm(f"{target}/ffn", f"{source}.final_layer_norm")
            if side == "decoder":
                cross = [f"{source}.encoder_attn.{letter}_proj" for letter in "kv"]
                copy(f"{target}/attention/linear_0", f"{source}.encoder_attn.q_proj")
                copy(f"{target}/attention/linear_1", *cross)
                copy(f"{target}/attention/linear_2", f"{source}.encoder_attn.out_proj")
                norm(f"{target}/attention", f"{source}.encoder_attn_layer_norm")
    return variables


def write_folder(folder: Path, variables: Mapping[str, Tensor], **options: Any) -> Path:
    """A folder with the model, its configuration and a tokenizer."""
    folder.mkdir(exist_ok=True)
    write_model(folder / "model.bin", variables, **options)
    config = {"suppress_ids": [5, 7, -1], "suppress_ids_begin": [4], "alignment_heads": [[0, 1]]}
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Words and special tokens; timestamps have no spelling."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))


def _name(text: str) -> bytes:
    content = text.encode() + b"\0"
    return struct.pack("<H", len(content)) + content
