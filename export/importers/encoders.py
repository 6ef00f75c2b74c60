"""Assembles an encoder from a body and a head.

A family's importer builds the :class:`Body` and has a table of heads by class.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError, UnsupportedError
from export.importers.heads import Head, HeadReader
from export.importers.m3 import is_m3, m3_embedder
from export.importers.multi_vector import is_multi_vector, multi_vector_embedder
from export.importers.renaming import Rename, prefixed, rename
from export.importers.samples import ENGLISH_TEXTS
from export.importers.sentence_transformers import embedder, is_embedder
from export.importers.span_heads import is_span_classifier, span_classifier
from export.importers.sparse_embedders import is_sparse, sparse_embedder
from export.importers.support import bundle_name
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from export.tokenization.hugging_face import TOKENIZER_CONFIG_FILE, read_optional_fields
from export.tokenization.none import NO_TOKENIZER
from export.tokenization.special import DEFAULTS, class_name
from model.audio_config import AudioConfig
from model.bundle import SpecialTokens, Task
from model.config import EmbeddingConfig, Kind, ModelConfig, SpectrogramConfig, StackConfig
from model.image_config import PatchConfig
from model.position_config import PositionConfig
from model.rereading_config import RereadingConfig
from model.waveform_config import WaveformConfig


@dataclass(frozen=True, kw_only=True)
class Body:
    """An encoder without its head.

    In classes with a head, the names of its weights have the prefix ``base``; ``table``,
    ``ignored``, ``computed`` and ``copies`` have the names without it.

    Attributes:
        ignored_heads: weights of other classes' heads, which the family's checkpoints may contain.
        allows_unattended: whether ``transformers`` treats tokens that are not attended to like
            other tokens otherwise.
    """

    base: str
    hidden_size: int
    position: PositionConfig
    embedding: EmbeddingConfig
    encoder: StackConfig
    decoder: StackConfig | None = None
    rereading: RereadingConfig | None = None
    patches: PatchConfig | None = None
    waveform: WaveformConfig | None = None
    spectrogram: SpectrogramConfig | None = None
    audio: AudioConfig | None = None
    table: tuple[Rename, ...]
    ignored: tuple[str, ...] = ()
    ignored_heads: tuple[str, ...] = ()
    computed: Mapping[str, Tensor] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    allows_unattended: bool = True


def read_head(
    folder: HuggingFaceFolder, heads: Mapping[str, HeadReader], default: str, max_positions: int
) -> tuple[str, Head]:
    """The class of the model in ``folder``, and its head.

    Raises:
        UnsupportedError: the class is not in ``heads``.
    """
    architecture = next(iter(folder.config.texts("architectures")), default)
    if is_span_classifier(folder):
        return architecture, span_classifier(folder)
    if is_multi_vector(folder):
        return architecture, multi_vector_embedder(folder, max_positions)
    read = lookup(heads, architecture, f"{folder.config.origin}: architectures")
    if is_sparse(folder):
        return architecture, sparse_embedder(folder, read)
    if is_m3(folder):
        return architecture, m3_embedder(folder)
    return architecture, (embedder if is_embedder(folder) else read)(folder)


def assemble(
    folder: HuggingFaceFolder, body: Body, heads: Mapping[str, HeadReader], default: str
) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Args:
        folder: the checkpoint's folder.
        body: from the family's importer.
        heads: by class.
        default: the class if the configuration names none.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    architecture, head = read_head(folder, heads, default, body.position.max_positions)
    return join(folder, body, architecture, head)


def join(folder: HuggingFaceFolder, body: Body, architecture: str, head: Head) -> Checkpoint:
    """``body`` with ``head``, ready for a bundle; errors as in :func:`assemble`."""
    config = folder.config
    inputs = (body.patches, body.waveform, body.spectrogram, body.audio)
    reads_texts = all(given is None for given in inputs)
    has_vocabulary = reads_texts or Task.TRANSCRIBE in head.tasks
    has_unattended = _has_unattended(head)
    if has_unattended and not body.allows_unattended:
        raise UnsupportedError(
            f"{config.origin}: {architecture} with masks that fill up queries and are not attended "
            "to is not supported; supported: attended masks (attend_to_expansion_tokens), or none"
        )
    model = ModelConfig(
        kind=Kind.ENCODER,
        vocabulary_size=config.positive("vocab_size") if has_vocabulary else 0,
        hidden_size=body.hidden_size,
        position=body.position,
        embedding=body.embedding,
        encoder=msgspec.structs.replace(body.encoder, has_unattended=has_unattended),
        decoder=body.decoder,
        rereading=body.rereading,
        patches=body.patches,
        waveform=body.waveform,
        spectrogram=body.spectrogram,
        audio=body.audio,
        head=head.config,
    )
    start = f"{body.base}."
    prefix = start if any(name.startswith(start) for name in folder.weights) else ""
    used = {source for entry in head.table for source in entry.sources}
    copies = {**{prefix + name: x for name, x in body.copies.items()}, **head.copies}
    ignored = {*(prefix + name for name in body.ignored), *body.ignored_heads, *head.ignored} - used
    weights = rename(
        [*prefixed(body.table, prefix), *head.table],
        _MergedWeights(head.weights, folder.weights),
        ignored=ignored,
        copies={name: target for name, target in copies.items() if name not in used},
        computed={prefix + name: value for name, value in body.computed.items()},
    )
    check_weights(model, weights)
    return Checkpoint(
        config=model,
        weights=weights,
        tokenizer_json=folder.tokenizer_json if reads_texts else NO_TOKENIZER,
        architecture=architecture,
        tasks=head.tasks,
        special_tokens=SpecialTokens(
            pad=config.integer("pad_token_id", 0),
            mask=mask_token(folder) if Task.FILL_MASK in head.tasks else None,
        ),
        license=folder.license,
        name=bundle_name(folder.path),
        labels=head.labels,
        score_function=head.score_function,
        edits=head.edits,
        embedding=head.embedding,
        pair_template=head.pair_template,
        span_tagging=head.span_tagging,
        max_input_tokens=head.max_input_tokens,
        sample_inputs=ENGLISH_TEXTS,
    )


def _has_unattended(head: Head) -> bool:
    spec = None if head.embedding is None else head.embedding.multi_vector
    return spec is not None and spec.filler is not None and not spec.attends_to_filler


# The first checkpoints use TensorFlow's names for the weights of layer norms.
LEGACY_ENDINGS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


class _MergedWeights(Mapping[str, Tensor]):
    """The weights of several files as one mapping; each weight is read on access."""

    def __init__(self, *parts: Mapping[str, Tensor]) -> None:
        self._parts = {_modern(name): (part, name) for part in parts for name in part}

    def __getitem__(self, name: str) -> Tensor:
        part, original = self._parts[name]
        return part[original]

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def _modern(name: str) -> str:
    for ending, modern in LEGACY_ENDINGS.items():
        if name.endswith(ending):
            return name.removesuffix(ending) + modern
    return name


def mask_token(folder: HuggingFaceFolder) -> int:
    """The id of the mask token: the one that the files name, or the tokenizer class's own.

    Raises:
        SourceError: there is none, or the tokenizer does not have it.
    """
    named = folder.special_tokens
    own = read_optional_fields(folder.path / TOKENIZER_CONFIG_FILE)
    default = DEFAULTS.get(class_name(own, folder.config), {}).get("mask")
    token = named.get("mask_token", default)
    id_ = None if token is None else folder.tokenizer.token_to_id(token)
    if id_ is None and named.get("mask_token") is None:
        raise SourceError(
            f"{folder.path}: neither tokenizer_config.json nor special_tokens_map.json has a "
            "mask_token"
        )
    if id_ is None:
        raise SourceError(f"{folder.path}: the tokenizer has no mask_token {token!r}")
    return int(id_)
