"""Static embeddings with random rows, in the layouts of model2vec and sentence-transformers.

:func:`reference` computes their vectors from the files, as both libraries do.
"""

import json
import shutil
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from model.bundle import Precision
from tests import heads

MODEL2VEC, QUANTIZED, SENTENCES, INT8 = "potion", "quantized", "static", "potion-int8"
NAMES = (MODEL2VEC, QUANTIZED, SENTENCES, INT8)
SIZE, NUM_ROWS = 24, 500
MAX_LENGTH = 20  # of QUANTIZED; MODEL2VEC has the default
SENTENCES_LENGTH = 128  # in the tokenizer's file
PROMPTS = {"query": "question: "}
UNKNOWN = "𓀀"  # has no token
TEXTS = (
    "Paris is the capital of France, isn't it?",
    "a",
    f"the dog {UNKNOWN} and [SEP] {UNKNOWN}{UNKNOWN} the [MASK] dog",
    "Ángela met études 🙂 in 東京.",
)
WITHOUT_TOKENS = "\u200b\u200b"
# More tokens than characters allow, and more characters than tokens.
LONG = ("electroencephalography internationalization " * 100, "a b c d e f " * 90)


@cache
def _rows(count: int) -> NDArray[np.float32]:
    random = np.random.default_rng(17)
    sizes = random.lognormal(size=(count, 1))
    return (random.standard_normal((count, SIZE)) * sizes).astype(np.float32)


def save_model2vec(folder: Path, **config: Any) -> Path:
    """The files of ``StaticModel.save_pretrained``, with a row for each token."""
    tokenizer = _add_tokenizer(folder)
    save_file({"embeddings": _rows(tokenizer.get_vocab_size())}, folder / "model.safetensors")
    _write(folder / "config.json", {"model_type": "model2vec", **config})
    modules = [("sentence_transformers.models.StaticEmbedding", ".")]
    modules += [("sentence_transformers.models.Normalize", "1_Normalize")] * bool(
        config.get("normalize")
    )
    _add_modules(folder, modules)
    return folder


def save_quantized(folder: Path) -> Path:
    """The same with a quantized vocabulary: rows in int8, each token's row and its factor."""
    save_model2vec(folder, normalize=False, max_length=MAX_LENGTH, embedding_dtype="int8")
    random, size = np.random.default_rng(18), _add_tokenizer(folder).get_vocab_size()
    weights = {
        "embeddings": random.integers(-127, 128, (NUM_ROWS, SIZE), np.int8),
        "mapping": random.integers(0, NUM_ROWS, size, np.int64),
        "weights": random.lognormal(size=size),
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def save_sentences(folder: Path) -> Path:
    """The files of ``SentenceTransformer.save`` with a StaticEmbedding, in half precision."""
    part = folder / "0_StaticEmbedding"
    tokenizer = _add_tokenizer(part)
    table = _rows(tokenizer.get_vocab_size()).astype(np.float16)
    save_file({"embedding.weight": table}, part / "model.safetensors")
    _add_modules(
        folder,
        [("sentence_transformers.models.static_embedding.StaticEmbedding", "0_StaticEmbedding")],
    )
    config = {"prompts": PROMPTS, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write(folder / "config_sentence_transformers.json", config)
    return folder


def save_source(folder: Path, name: str) -> Path:
    """The checkpoint of one of :data:`NAMES`."""
    if name == SENTENCES:
        return save_sentences(folder)
    if name == QUANTIZED:
        return save_quantized(folder)
    return save_model2vec(folder, normalize=True)


def write_bundle_of(root: Path, name: str) -> None:
    """Writes the bundle ``root / name`` of one of :data:`NAMES`, unless it exists."""
    if (root / name).exists():
        return
    folder = save_source(root / f".source-{name}", name)
    precision = Precision.INT8 if name == INT8 else Precision.FP32
    write_bundle(load_checkpoint(str(folder)), root, name=name, precision=precision)
    shutil.rmtree(folder)


def reference(folder: Path, text: str, max_length: int | None = None) -> NDArray[np.float64]:
    """The vector of ``text`` by the library that wrote ``folder``, ``[SIZE]``.

    model2vec 0.10 (``StaticModel.encode``) drops unknown tokens and, by default, cuts texts.
    """
    rows = tokens_of(folder, text, max_length)
    mean = rows.mean(0) if len(rows) else np.zeros(SIZE)
    is_normalized = "Normalize" in (folder / "modules.json").read_text()
    vector: NDArray[np.float64] = mean
    if is_normalized:
        vector = mean / max(float(np.linalg.norm(mean)), 1e-32)
    return vector


def tokens_of(folder: Path, text: str, max_length: int | None = None) -> NDArray[np.float64]:
    """The rows of the tokens that count, with their factors: ``[tokens, SIZE]``."""
    part = folder / "0_StaticEmbedding"
    if part.exists():
        tokenizer = _tokenizer(part)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        table: Any = load_file(part / "model.safetensors")["embedding.weight"]
        return np.array(table[ids], np.float64)
    tokenizer = _tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    max_length = max_length or config.get("max_length", 512)
    median = int(statistics.median(map(len, tokenizer.get_vocab())))
    tokenizer.enable_truncation(max_length)
    encoding = tokenizer.encode(text[: max_length * median], add_special_tokens=False)
    ids = [id_ for id_ in encoding.ids if id_ != tokenizer.token_to_id("[UNK]")]
    weights = load_file(folder / "model.safetensors")
    rows = np.arange(len(weights["embeddings"]))
    rows, factors = weights.get("mapping", rows), weights.get("weights", np.ones(len(rows)))
    found = np.array(weights["embeddings"], np.float64)[rows[ids]] * factors[ids][:, None]
    return np.reshape(found, (-1, SIZE))


@cache
def sources(root: Path) -> dict[str, Path]:
    """The checkpoints of all :data:`NAMES` under ``root``, which the first call makes."""
    return {name: save_source(root / name, name) for name in NAMES}


def _tokenizer(folder: Path) -> Any:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    return tokenizer


def _add_tokenizer(folder: Path) -> Any:
    """BERT's tokenizer, whose file frames, pads and cuts texts."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(heads.tokenizer_folder() / "tokenizer.json", folder)
    return _tokenizer(folder)


def _add_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    rows = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (kind, path) in enumerate(modules)
    ]
    _write(folder / "modules.json", rows)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
