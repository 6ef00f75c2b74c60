"""Three kinds of vectors at once: M3-Embedding (Chen et al. 2024), as FlagEmbedding saves it.

Beside an encoder with dense vectors, the folder has two linear maps of token vectors: to the
token's weight in a sparse vector, and to a vector of its own.
"""

import pickle
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from export.errors import SourceError
from export.importers.heads import Head
from export.importers.renaming import linear
from export.importers.sentence_transformers import embedder, read_modules
from export.readers.hugging_face import HuggingFaceFolder
from export.readers.pickles import LINEAR_FILES, MULTI_VECTOR_FILE, SPARSE_FILE
from model.bundle import Embedding, TokenVectors, TokenWeights
from model.config import DenseConfig, PoolingKind

# The tokens that have no weight, by their names in the tokenizer's files.
_WITHOUT_WEIGHT = ("cls_token", "eos_token", "pad_token", "unk_token")
_MAX_BYTES = 1 << 28  # of a map from 8,192 numbers to as many
_PREFIXES = {SPARSE_FILE: "sparse_linear", MULTI_VECTOR_FILE: "colbert_linear"}


def is_m3(folder: HuggingFaceFolder) -> bool:
    """Whether the folder has a map of M3-Embedding."""
    return any((folder.path / name).is_file() for name in LINEAR_FILES)


def m3_embedder(folder: HuggingFaceFolder) -> Head:
    """The head with dense vectors as :func:`embedder` reads them, and with both maps.

    Without ``modules.json``, dense vectors are those of the first token, normalized, which is
    FlagEmbedding's default. Vectors of tokens are always normalized.

    Raises:
        SourceError: a file is missing or damaged, or does not fit the model.
        UnsupportedError: a file needs a feature that is not supported.
    """
    missing = [name for name in LINEAR_FILES if not (folder.path / name).is_file()]
    if missing:
        raise SourceError(
            f"{folder.path}: no {missing[0]}; M3-Embedding has {' and '.join(LINEAR_FILES)}"
        )
    head, hidden_size = embedder(folder), folder.config.positive("hidden_size")
    config, embedding = head.config, head.embedding
    if embedding is None:
        raise ValueError("an embedder without vectors")
    if not read_modules(folder):
        config = msgspec.structs.replace(config, pooling=PoolingKind.CLS, normalize=True)
        embedding = msgspec.structs.replace(embedding, pooling=PoolingKind.CLS, is_normalized=True)
    maps = {name: _read_linear(folder.path / name, hidden_size) for name in LINEAR_FILES}
    size = len(maps[MULTI_VECTOR_FILE]["bias"])
    if not size:
        raise SourceError(f"{MULTI_VECTOR_FILE}: vectors of no numbers")
    if len(maps[SPARSE_FILE]["bias"]) != 1:
        raise SourceError(f"{SPARSE_FILE}: not one weight for each token")
    return replace(
        head,
        config=msgspec.structs.replace(config, sparse=True, multi_vector=DenseConfig(size=size)),
        table=(
            *head.table,
            *linear("head.sparse", _PREFIXES[SPARSE_FILE], bias=True),
            *linear("head.multi_vector.linear", _PREFIXES[MULTI_VECTOR_FILE], bias=True),
        ),
        weights={
            **head.weights,
            **{f"{_PREFIXES[file]}.{name}": x for file in maps for name, x in maps[file].items()},
        },
        embedding=_with_maps(embedding, folder, size),
    )


def _with_maps(embedding: Embedding, folder: HuggingFaceFolder, size: int) -> Embedding:
    named, tokenizer = folder.special_tokens, folder.tokenizer
    tokens = [token for name in _WITHOUT_WEIGHT if (token := named.get(name)) is not None]
    ids = {tokenizer.token_to_id(token) for token in tokens}
    return msgspec.structs.replace(
        embedding,
        token_weights=TokenWeights(excluded=tuple(sorted(x for x in ids if x is not None))),
        token_vectors=TokenVectors(size=size),
    )


def _read_linear(file: Path, hidden_size: int) -> dict[str, Tensor]:
    """``weight [size, hidden]`` and ``bias [size]`` of a file that ``torch.save`` wrote.

    The file is a pickle, but ``weights_only`` builds only tensors and plain containers: it calls no
    other function that the file names.
    """
    if file.stat().st_size > _MAX_BYTES:
        raise SourceError(f"{file.name}: more than {_MAX_BYTES >> 20} MiB for a linear map")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (
        OSError,
        RuntimeError,
        LookupError,
        ValueError,
        EOFError,
        TypeError,
        AttributeError,
        pickle.UnpicklingError,
    ) as error:
        reason = str(error).partition("\n")[0]
        raise SourceError(f"{file.name}: not the weights of a linear map: {reason}") from error
    if not isinstance(found, dict) or set(found) != {"weight", "bias"}:
        raise SourceError(f"{file.name}: not a dictionary of weight and bias")
    weight, bias = found["weight"], found["bias"]
    if not (isinstance(weight, Tensor) and isinstance(bias, Tensor)):
        raise SourceError(f"{file.name}: weight and bias are not tensors")
    if not (weight.is_floating_point() and bias.is_floating_point()):
        raise SourceError(f"{file.name}: weight and bias are not floating-point numbers")
    if weight.ndim != 2 or weight.shape[1] != hidden_size or bias.shape != weight.shape[:1]:
        raise SourceError(
            f"{file.name}: {list(weight.shape)} and {list(bias.shape)} numbers for vectors of "
            f"{hidden_size}"
        )
    return {"weight": weight.float(), "bias": bias.float()}
