"""Writes small random Marian models in ``marian-conv``'s file layout."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml

SIZE, INNER_SIZE, NUM_LAYERS, NUM_HEADS, VOCABULARY_SIZE = 32, 48, 2, 4, 60
TEXT = (
    "The cat sat on the mat, and the cats were sitting on all of the mats.",
    "A dog ran over the red bridge; two dogs are running over bridges.",
    "Birds sing at 9 o'clock in the morning, singing songs that birds have sung.",
    "Every translation of a sentence begins with translating its sentences.",
)

CONFIG: dict[str, object] = {
    "type": "transformer",
    "dim-emb": SIZE,
    "dim-vocabs": [VOCABULARY_SIZE, VOCABULARY_SIZE],
    "enc-depth": NUM_LAYERS,
    "dec-depth": NUM_LAYERS,
    "transformer-heads": NUM_HEADS,
    "transformer-dim-ffn": INNER_SIZE,
    "transformer-ffn-activation": "relu",
    "transformer-ffn-depth": 2,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-decoder-autoreg": "self-attention",
    "tied-embeddings-all": True,
}
SSRU = {**CONFIG, "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}

Tensors = dict[str, np.ndarray]


def random_tensors(config: dict[str, object], seed: int = 0) -> Tensors:
    """Weights by Marian's names for ``config``."""
    generator = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, int]] = {"decoder_ff_logit_out_b": (1, VOCABULARY_SIZE)}
    shapes["Wemb"] = (VOCABULARY_SIZE, SIZE)

    def norm(prefix: str) -> None:
        shapes.update({f"{prefix}_ln_{kind}": (1, SIZE) for kind in ("scale", "bias")})

    def attention(prefix: str) -> None:
        for letter in "qkvo":
            shapes.update({f"{prefix}_W{letter}": (SIZE, SIZE), f"{prefix}_b{letter}": (1, SIZE)})
        norm(f"{prefix}_Wo")

    for side in ("encoder", "decoder"):
        for layer in range(1, NUM_LAYERS + 1):
            name = f"{side}_l{layer}"
            if side == "decoder" and config["transformer-decoder-autoreg"] == "rnn":
                shapes.update({f"{name}_rnn_{kind}": (SIZE, SIZE) for kind in ("W", "Wf")})
                shapes[f"{name}_rnn_bf"] = (1, SIZE)
                norm(f"{name}_rnn_ffn")
            else:
                attention(f"{name}_self")
            if side == "decoder":
                attention(f"{name}_context")
            shapes[f"{name}_ffn_W1"], shapes[f"{name}_ffn_b1"] = (SIZE, INNER_SIZE), (1, INNER_SIZE)
            shapes[f"{name}_ffn_W2"], shapes[f"{name}_ffn_b2"] = (INNER_SIZE, SIZE), (1, SIZE)
            norm(f"{name}_ffn_ffn")
    return {
        name: (generator.normal(0, 0.3, shape) + name.endswith("scale")).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_binary(
    path: Path, tensors: Tensors, config: dict[str, object], *, quantize: bool = False
) -> Path:
    """``quantize`` stores matrices as 8-bit integers with a multiplier, padded to 256 bytes."""
    items = []
    for name, values in tensors.items():
        if quantize and min(values.shape) > 1:
            multiplier = 127 / np.abs(values).max()
            levels = np.round(values * multiplier).astype(np.int8)
            data = (levels if name == "Wemb" else levels.T).tobytes()
            data += struct.pack("<f", multiplier)
            items.append((name, 0x4101, values.shape, data + bytes(-len(data) % 256)))
            items.append((f"{name}_QuantMultA", 0x404, (1, 1), struct.pack("<f", 20.0)))
        else:
            items.append((name, 0x404, values.shape, values.astype("<f4").tobytes()))
    text = yaml.safe_dump(config).encode() + b"\0"
    items.append(("special:model.yml", 0x101, (len(text),), text))
    names = [name.encode() + b"\0" for name, *_ in items]
    head = struct.pack("<QQ", 1, len(items))
    for encoded, (_, kind, shape, data) in zip(names, items, strict=True):
        head += struct.pack("<QQQQ", len(encoded), kind, len(shape), len(data))
    head += b"".join(names)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(head) + 8) % 256
    head += struct.pack("<Q", padding) + bytes(padding)
    path.write_bytes(head + b"".join(data for *_, data in items))
    return path


def train_vocabulary(path: Path, **options: Any) -> Path:
    """A SentencePiece model with ``</s>`` and ``<unk>`` first, as Firefox's have."""
    model = io.BytesIO()
    defaults: dict[str, Any] = {
        "model_type": "unigram",
        "vocab_size": VOCABULARY_SIZE,
        "eos_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "normalization_rule_name": "nmt_nfkc",
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT * 20), model_writer=model, **{**defaults, **options}
    )
    path.write_bytes(model.getvalue())
    return path
