"""A NumPy reference for Marian translation models, independent of the importer.

Has its own file reader and computes a whole target in one pass, without a cache. Based on
marian-dev: ``binary.cpp``, ``transformer.h``, ``rnn/cells.h``.
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

Array = NDArray[Any]


def read_model(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Weights by Marian's names, matrices ``[inputs, outputs]``, and ``special:model.yml``."""
    data = path.read_bytes()
    count = struct.unpack_from("<Q", data, 8)[0]
    records = np.frombuffer(data, "<u8", 4 * count, 16).reshape(count, 4)
    offset = 16 + 32 * count
    names = []
    for length in records[:, 0]:
        names.append(data[offset : offset + int(length) - 1].decode())
        offset += int(length)
    shapes = []
    for rank in records[:, 2]:
        shapes.append(struct.unpack_from(f"<{rank}i", data, offset))
        offset += 4 * int(rank)
    offset += 8 + struct.unpack_from("<Q", data, offset)[0]
    weights: dict[str, Array] = {}
    config: dict[str, Any] = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, records, strict=True):
        raw, offset = data[offset : offset + int(size)], offset + int(size)
        if name == "special:model.yml":
            config = yaml.safe_load(raw.rstrip(b"\0"))
        elif name.endswith("_QuantMultA"):
            continue
        elif kind == 0x404:
            weights[name] = np.frombuffer(raw, "<f4", math.prod(shape)).reshape(shape)
        else:
            levels = np.frombuffer(raw, "i1", math.prod(shape)).astype(np.float32)
            levels /= struct.unpack_from("<f", raw, math.prod(shape))[0]
            rows, columns = shape
            direct = name.endswith("Wemb")
            weights[name] = levels.reshape(shape) if direct else levels.reshape(columns, rows).T
    return weights, config


class Reference:
    """A Marian model in NumPy."""

    def __init__(self, path: Path) -> None:
        self.weights, self.config = read_model(path)
        self.embedding = self.weights["Wemb" if "Wemb" in self.weights else "encoder_Wemb"]
        self.size = self.embedding.shape[1]
        self.num_heads = int(self.config["transformer-heads"])

    def logits(self, source: list[int], target: list[int]) -> Array:
        """Logits ``[1 + len(target), vocabulary]``, after the start token and each of ``target``.

        The start token's embedding is zero. ``source`` ends with ``</s>``.
        """
        embedded = np.zeros((len(target) + 1, self.size), np.float32)
        embedded[1:] = self.embedding[target]
        return self._decode(embedded, self._encode(source))

    def _encode(self, source: list[int]) -> Array:
        x = self._with_positions(self.embedding[source])
        for layer in range(1, int(self.config["enc-depth"]) + 1):
            name = f"encoder_l{layer}"
            x = self._norm(x + self._attend(x, x, f"{name}_self"), f"{name}_self_Wo")
            x = self._feed_forward(x, f"{name}_ffn")
        return x

    def _decode(self, embedded: Array, context: Array) -> Array:
        """Logits ``[length, vocabulary]``: the whole target in one pass."""
        x = self._with_positions(embedded)
        for layer in range(1, int(self.config["dec-depth"]) + 1):
            name = f"decoder_l{layer}"
            if self.config.get("transformer-decoder-autoreg") == "rnn":
                cells = self._ssru(x, f"{name}_rnn")
                x = self._norm(x + np.maximum(cells, 0), f"{name}_rnn_ffn")
            else:
                attended = self._attend(x, x, f"{name}_self", causal=True)
                x = self._norm(x + attended, f"{name}_self_Wo")
            x = self._norm(x + self._attend(x, context, f"{name}_context"), f"{name}_context_Wo")
            x = self._feed_forward(x, f"{name}_ffn")
        output = self.weights.get("decoder_ff_logit_out_W", self.embedding.T)
        bias = self.weights.get("decoder_ff_logit_out_b")
        logits: Array = x @ output + (0 if bias is None else bias[0])
        return logits

    def _with_positions(self, x: Array) -> Array:
        half = self.size // 2
        rates = 10_000.0 ** -(np.arange(half) / max(half - 1, 1))
        angles = np.arange(len(x))[:, None] * rates
        signal = np.hstack([np.sin(angles), np.cos(angles)])
        placed: Array = (x * math.sqrt(self.size) + signal).astype(np.float32)
        return placed

    def _affine(self, x: Array, prefix: str, letter: str) -> Array:
        weight, bias = self.weights[f"{prefix}_W{letter}"], self.weights[f"{prefix}_b{letter}"]
        y: Array = x @ weight + bias
        return y

    def _attend(self, x: Array, context: Array, prefix: str, *, causal: bool = False) -> Array:
        def heads(y: Array) -> Array:  # [heads, length, head size]
            return y.reshape(len(y), self.num_heads, -1).swapaxes(0, 1)

        query = heads(self._affine(x, prefix, "q"))
        key, value = (
            heads(self._affine(context, prefix, "k")),
            heads(self._affine(context, prefix, "v")),
        )
        scores = query @ key.swapaxes(1, 2) / math.sqrt(query.shape[-1])
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        joined = (weights @ value).swapaxes(0, 1).reshape(len(x), -1)
        return self._affine(joined, prefix, "o")

    def _ssru(self, x: Array, prefix: str) -> Array:
        gates = 1 / (1 + np.exp(-(x @ self.weights[f"{prefix}_Wf"] + self.weights[f"{prefix}_bf"])))
        inputs = x @ self.weights[f"{prefix}_W"]
        cell, cells = np.zeros(self.size, np.float32), []
        for gate, new in zip(gates, inputs, strict=True):
            cell = gate * cell + (1 - gate) * new
            cells.append(cell)
        return np.stack(cells)

    def _feed_forward(self, x: Array, prefix: str) -> Array:
        inner = self._affine(x, prefix, "1")
        swish = self.config.get("transformer-ffn-activation") == "swish"
        inner = inner / (1 + np.exp(-inner)) if swish else np.maximum(inner, 0)
        return self._norm(x + self._affine(inner, prefix, "2"), f"{prefix}_ffn")

    def _norm(self, x: Array, prefix: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        scale, bias = self.weights[f"{prefix}_ln_scale"], self.weights[f"{prefix}_ln_bias"]
        normed: Array = centred / deviation * scale + bias
        return normed
