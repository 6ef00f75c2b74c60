"""Whisper base in *transformers*, from the default model's file. It does not use the importer."""

import struct
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from export.sources import DEFAULT_SOURCES

TYPES = {1: np.int8, 2: np.int16, 4: np.float16}
SIDES = ("encoder", "decoder")
NUM_LAYERS = 6


@cache
def whisper_by_transformers() -> Any:
    """The model, with all weights of the file."""
    with DEFAULT_SOURCES["whisper"].whole() as folder:
        read = _read((folder / "model.bin").read_bytes())
    table = read["decoder/embeddings/weight"]
    config = WhisperConfig(
        vocab_size=len(table),
        d_model=table.shape[1],
        encoder_layers=NUM_LAYERS,
        decoder_layers=NUM_LAYERS,
        encoder_attention_heads=int(read["encoder/num_heads"]),
        decoder_attention_heads=int(read["decoder/num_heads"]),
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
    )
    model = WhisperForConditionalGeneration(config)
    model.load_state_dict(_state(read))
    return model.eval()


def _read(data: bytes) -> dict[str, Tensor]:
    offset = 4 + 2 + len("WhisperSpec") + 1 + 4  # version, name, revision
    (count,) = struct.unpack_from("<I", data, offset)
    offset += 4
    variables = {}
    for _ in range(count):
        (length,) = struct.unpack_from("<H", data, offset)
        name = data[offset + 2 : offset + 1 + length].decode()
        offset += 2 + length
        shape = struct.unpack_from(f"<{data[offset]}I", data, offset + 1)
        offset += 1 + 4 * len(shape)
        kind, num_bytes = struct.unpack_from("<BI", data, offset)
        values = np.frombuffer(data[offset + 5 : offset + 5 + num_bytes], TYPES[kind])
        variables[name] = torch.from_numpy(values.reshape(shape).astype(np.float32))
        offset += 5 + num_bytes
    return variables


def _state(read: dict[str, Tensor]) -> dict[str, Tensor]:
    """By the names of *transformers*."""
    table = read["decoder/embeddings/weight"]
    state = {"model.decoder.embed_tokens.weight": table, "proj_out.weight": table}

    def copy(source: str, *targets: str, names: tuple[str, str] = ("weight", "bias")) -> None:
        for name, own in zip(names, ("weight", "bias"), strict=True):
            parts = read[f"{source}/{name}"].chunk(len(targets))
            for target, part in zip(targets, parts, strict=True):
                if target.endswith("k_proj") and own == "bias":
                    assert not part.any(), "keys have no bias"
                else:
                    state[f"{target}.{own}"] = part

    for number in (1, 2):
        copy(f"encoder/conv{number}", f"model.encoder.conv{number}")
    for side in SIDES:
        positions = read[f"{side}/position_encodings/encodings"]
        state[f"model.{side}.embed_positions.weight"] = positions
        norms = {f"{side}/layer_norm": f"model.{side}.layer_norm"}
        for layer in range(NUM_LAYERS):
            source, target = f"{side}/layer_{layer}", f"model.{side}.layers.{layer}"
            own, cross = f"{target}.self_attn", f"{target}.encoder_attn"
            copy(f"{source}/self_attention/linear_0", *(f"{own}.{x}_proj" for x in "qkv"))
            copy(f"{source}/self_attention/linear_1", f"{own}.out_proj")
            copy(f"{source}/ffn/linear_0", f"{target}.fc1")
            copy(f"{source}/ffn/linear_1", f"{target}.fc2")
            norms[f"{source}/self_attention/layer_norm"] = f"{own}_layer_norm"
            norms[f"{source}/ffn/layer_norm"] = f"{target}.final_layer_norm"
            if side == "decoder":
                copy(f"{source}/attention/linear_0", f"{cross}.q_proj")
                copy(f"{source}/attention/linear_1", *(f"{cross}.{x}_proj" for x in "kv"))
                copy(f"{source}/attention/linear_2", f"{cross}.out_proj")
                norms[f"{source}/attention/layer_norm"] = f"{cross}_layer_norm"
        for source, target in norms.items():
            copy(source, target, names=("gamma", "beta"))
    return state
