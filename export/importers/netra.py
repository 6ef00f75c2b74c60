"""Khmer from Latin letters: ``netra-transliterate`` (Nhem), a Keras archive and its vocabulary.

A bidirectional GRU reads the letters; a GRU with a zero initial state writes Khmer. Its state after
each step attends to the source (Bahdanau et al. 2015): Keras's ``AdditiveAttention`` is ``v^T
tanh(s + h_j)`` without matrices. The package pads every source to 25 letters, and encoder and
attention read the padding too, so padding is part of the text here.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError, UnsupportedError
from export.importers.renaming import Rename, Transform, rename
from export.readers.keras import SUFFIX, KerasArchive, read_keras
from export.readers.keras_vocabulary import read_vocabularies
from model.bundle import SpecialTokens, Task
from model.config import EmbeddingConfig, HeadConfig, HeadKind, Kind, ModelConfig
from model.position_config import PositionConfig, PositionKind
from model.recurrent_config import (
    AlignmentConfig,
    AlignmentKind,
    BridgeKind,
    CellKind,
    RecurrentConfig,
)

ARCHITECTURE = "GRU encoder-decoder with additive attention"
VOCABULARY_FILE = "gru_transliteration_assets.pkl"
VOCABULARIES = ("eng_tokenizer", "khm_tokenizer")
SOURCE_LENGTH = 25
# The package's own limit is 32 characters; this one limits the server's cache.
MAX_POSITIONS = 64
LENGTH_FACTOR = 32 / SOURCE_LENGTH
BEGIN, END, UNKNOWN = "\t", "\n", "<unk>"
PAD = "_"  # neither a letter of the source nor a character of the target
SAMPLES = ("angkor", "phnom penh", "soksabay", "khnhom", "srolanh", "bat", "tov", "attention")
# The settings that each layer must have besides its weights.
SETTINGS: dict[str, dict[str, Any]] = {
    "GRU": {
        "reset_after": True,
        "activation": "tanh",
        "recurrent_activation": "sigmoid",
        "use_bias": True,
    },
    "Bidirectional": {"merge_mode": "concat"},
    "AdditiveAttention": {"use_scale": True},
    "Embedding": {"mask_zero": False},
}


def is_netra(path: Path) -> bool:
    """Whether the folder ``path`` has a Keras archive and this package's vocabulary."""
    return (path / VOCABULARY_FILE).is_file() and any(path.glob(f"*{SUFFIX}"))


def import_netra(path: Path) -> Checkpoint:
    """The model in the folder ``path``, ready for a bundle.

    Raises:
        SourceError: a file cannot be read, or the vocabularies do not fit the embeddings.
        UnsupportedError: a layer computes something else; the message lists all such settings.
        WeightsError: missing, unexpected or wrongly shaped weights; the message lists all.
    """
    (archive_path, *others) = sorted(path.glob(f"*{SUFFIX}"))
    if others:
        raise SourceError(f"{path}: more than one {SUFFIX} file")
    archive = read_keras(archive_path)
    _check_settings(archive_path, archive)
    source, target = read_vocabularies(path / VOCABULARY_FILE, VOCABULARIES)
    vocabulary = _vocabulary(source, target)
    first = len(source) + 1
    weights = rename(
        _table(first),
        archive.weights,
        ignored=[name for name in archive.weights if name.startswith("optimizer/")],
    )
    size = weights["decoder.layers.0.recurrent.weight"].shape[0]
    embedding = weights["embedding.tokens.weight"]
    # The scores in Keras have no matrices.
    identity = torch.eye(size)
    weights["decoder.alignment.query.weight"] = identity
    weights["decoder.alignment.key.weight"] = identity.clone()
    config = ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=len(vocabulary),
        hidden_size=2 * size,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=MAX_POSITIONS),
        embedding=EmbeddingConfig(size=embedding.shape[-1]),
        recurrent=RecurrentConfig(
            cell=CellKind.GRU,
            encoder_size=weights["encoder.layers.0.0.recurrent.weight"].shape[0],
            decoder_size=size,
            bidirectional=True,
            bridge=BridgeKind.ZERO,
            source_size=size,
            alignment=AlignmentConfig(kind=AlignmentKind.ADDITIVE, size=size),
            readout=False,
        ),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True),
    )
    check_weights(config, weights)
    start, end = first + target[BEGIN], first + target[END]
    suppressed = {*range(first + 1), start, first + target.get(UNKNOWN, 0)}
    return Checkpoint(
        config=config,
        weights=weights,
        tokenizer_json=_tokenizer(vocabulary).to_str(),
        architecture=ARCHITECTURE,
        tasks=(Task.GENERATE,),
        special_tokens=SpecialTokens(
            eos=(end,),
            pad=first,
            unk=source[UNKNOWN],
            decoder_start=start,
            suppressed=tuple(sorted(suppressed)),
        ),
        license="unknown",
        name="netra",
        target_language="km",
        max_length_factor=LENGTH_FACTOR,
        sample_inputs=SAMPLES,
    )


def _check_settings(path: Path, archive: KerasArchive) -> None:
    lines = [
        f"{kind}.{name} is {config.get(name)!r}, not {expected!r}"
        for kind, config in archive.layers
        for name, expected in SETTINGS.get(kind, {}).items()
        if config.get(name) != expected
    ]
    if lines:
        raise UnsupportedError("\n  ".join([f"{path}: unsupported layers:", *lines]))


def _vocabulary(source: dict[str, int], target: dict[str, int]) -> dict[str, int]:
    """Both alphabets, each with its padding as id 0; the target's ids follow the source's.

    ``<unk>`` of the target, which occurs in no text, and the tab and line feed that begin and end
    a target get names of their own.
    """
    missing = [name for name in (BEGIN, END) if name not in target]
    missing += [] if UNKNOWN in source else [UNKNOWN]
    if missing:
        raise SourceError(f"{VOCABULARY_FILE}: no token {', '.join(map(repr, missing))}")
    first = len(source) + 1
    names = {BEGIN: "<s>", END: "</s>", UNKNOWN: "<unk:target>"}
    vocabulary = {PAD: 0, **source, "<pad>": first}
    vocabulary |= {names.get(token, token): first + id_ for token, id_ in target.items()}
    if len(vocabulary) != len(source) + len(target) + 2:
        raise SourceError(f"{VOCABULARY_FILE}: the two alphabets share tokens")
    return vocabulary


def _gates(weight: Tensor) -> Tensor:
    """Converts Keras's gate order (update, reset, new) to reset, update, new (``torch.nn``)."""
    update, reset, new = weight.chunk(3, -1)
    return torch.cat([reset, update, new], -1)


def _bias(row: int) -> Transform:
    """Selects the bias of the input's or the state's product: ``reset_after`` gives a GRU both."""
    return lambda biases: _gates(biases[row])


def _table(num_source_tokens: int) -> list[Rename]:
    def output(weight: Tensor) -> Tensor:
        """Sets the logits of the source's tokens, which are suppressed, to zero."""
        return torch.cat([weight.new_zeros(*weight.shape[:-1], num_source_tokens), weight], -1)

    table = [
        Rename(
            "embedding.tokens.weight",
            ("layers/embedding/vars/0", "layers/embedding_1/vars/0"),
            lambda *tables: torch.cat(tables),
        ),
        Rename("encoder.output.weight", ("layers/time_distributed/layer/vars/0",)),
        Rename("encoder.output.bias", ("layers/time_distributed/layer/vars/1",)),
        Rename(
            "decoder.alignment.score.weight",
            ("layers/additive_attention/vars/0",),
            lambda scale: scale[:, None],
        ),
        Rename("head.output.weight", ("layers/dense/vars/0",), output),
        Rename("head.output.bias", ("layers/dense/vars/1",), output),
    ]
    for ours, theirs in (
        ("encoder.layers.0.0", "layers/bidirectional/forward_layer/cell"),
        ("encoder.layers.0.1", "layers/bidirectional/backward_layer/cell"),
        ("decoder.layers.0", "layers/gru/cell"),
    ):
        table += [
            Rename(f"{ours}.input.weight", (f"{theirs}/vars/0",), _gates),
            Rename(f"{ours}.recurrent.weight", (f"{theirs}/vars/1",), _gates),
            Rename(f"{ours}.input.bias", (f"{theirs}/vars/2",), _bias(0)),
            Rename(f"{ours}.recurrent.bias", (f"{theirs}/vars/2",), _bias(1)),
        ]
    return table


def _tokenizer(vocabulary: dict[str, int]) -> Tokenizer:
    """Lower-cases, keeps the last 25 letters, pads to 25; joins the target's characters."""
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Lowercase(),
            normalizers.Replace(Regex("[^a-z]"), ""),
            normalizers.Replace(Regex(f"^.*(?=.{{{SOURCE_LENGTH}}}$)"), ""),
            normalizers.Replace(Regex(r"\z"), PAD * SOURCE_LENGTH),
            normalizers.Replace(Regex(f"(?<=^.{{{SOURCE_LENGTH}}}).*"), ""),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>", UNKNOWN])
    return tokenizer
