"""A trained model in this project's own format, as importers return it."""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import save
from tokenizers import Tokenizer

from export.errors import SourceError, WeightsError
from export.sample_images import images_of
from model.bundle import (
    AudioSpec,
    CtcTokens,
    EditVocabulary,
    Embedding,
    ImageSpec,
    PairTemplate,
    ScoreFunction,
    SpanTagging,
    SpecialTokens,
    Task,
    TranscriptionTokens,
)
from model.config import ModelConfig
from model.examples import Example
from model.images import Pixels
from model.shortlist import Shortlist
from model.transformer import parameter_shapes

MAX_POSITIONS = 1 << 23  # bounds the tables of rotary positions


@dataclass(frozen=True)
class HeldOutSet:
    """Examples of a task that training did not see. ``sha256``: hash of their file."""

    name: str
    task: Task
    sha256: str
    examples: tuple[Example, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A trained model before it becomes a bundle.

    Attributes:
        weights: fp32, with the parameter names of ``model.transformer``; linear weights are
            ``[inputs, outputs]``.
        tokenizer_json: in the format of the *tokenizers* library.
        name: the bundle's default name.
        source: origin of a pulled checkpoint, ``hf:OWNER/NAME@COMMIT``.
        image: the preprocessing for a model of images.
        audio: the input format of a model of speech.
        sample_inputs: real texts for the parity check.
        samples: real images for all checks of a model of images; may be empty.
        held_out: examples on which the bundle's quality is measured.
    """

    config: ModelConfig
    weights: dict[str, torch.Tensor]
    tokenizer_json: str
    architecture: str
    tasks: tuple[Task, ...]
    special_tokens: SpecialTokens
    license: str
    name: str
    source: str | None = None
    chat_template: str | None = None
    labels: tuple[str, ...] = ()
    score_function: ScoreFunction | None = None
    edits: EditVocabulary | None = None
    embedding: Embedding | None = None
    pair_template: PairTemplate | None = None
    span_tagging: SpanTagging | None = None
    max_input_tokens: int | None = None
    source_language: str | None = None
    target_language: str | None = None
    languages: dict[str, int] = dataclasses.field(default_factory=dict)
    max_length_factor: float | None = None
    shortlist: Shortlist | None = None
    image: ImageSpec | None = None
    audio: AudioSpec | None = None
    transcription: TranscriptionTokens | None = None
    ctc: CtcTokens | None = None
    sample_inputs: tuple[str, ...] = ()
    samples: tuple[Pixels, ...] = ()
    held_out: HeldOutSet | None = None

    def images(self, count: int, seed: int) -> list[Pixels]:
        """At most ``count`` images: its own, or generated from ``seed``; none for texts."""
        return [] if self.image is None else images_of(self.image, self.samples, count, seed)


def weights_sha256(weights: Mapping[str, torch.Tensor]) -> str:
    """Hash of ``weights`` as safetensors, in the order of their names."""
    ordered = {name: weight.contiguous() for name, weight in sorted(weights.items())}
    return hashlib.sha256(save(ordered)).hexdigest()


def is_finite(weight: torch.Tensor) -> bool:
    """Whether no value of ``weight`` is NaN or infinite in fp32.

    Minimum and maximum suffice, NaN included, without a temporary tensor of the weight's size.
    """
    weight = weight.float()
    return weight.numel() == 0 or bool(torch.stack(weight.aminmax()).isfinite().all())


def refuse_damaged(broken: Iterable[str]) -> None:
    """Raises ``WeightsError`` with the names of all weights that are not finite, if any."""
    lines = [f"NaN or infinite: {name}" for name in broken]
    if lines:
        raise WeightsError("\n".join(["the weights are damaged:", *lines]))


def check_weights(config: ModelConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Checks the names, shapes and values of ``weights`` against ``config``.

    Raises:
        SourceError: more positions than ``MAX_POSITIONS``, for which tables would be computed.
        WeightsError: lists every missing, every unexpected and every wrongly shaped weight; if
            there are none, every weight that is not finite.
    """
    max_positions = config.position.max_positions
    if max_positions > MAX_POSITIONS:
        raise SourceError(f"the model has {max_positions} positions, more than {MAX_POSITIONS}")
    expected = parameter_shapes(config)
    lines = [f"missing: {name} {list(expected[name])}" for name in expected if name not in weights]
    lines += [
        f"unexpected: {name} {list(weights[name].shape)}"
        for name in weights
        if name not in expected
    ]
    lines += [
        f"wrong shape: {name} is {list(weights[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    if lines:
        raise WeightsError("\n".join(["the weights do not fit the configuration:", *lines]))
    refuse_damaged(name for name in expected if not is_finite(weights[name]))


def check_vocabulary(config: ModelConfig, tokenizer_json: str) -> None:
    """Checks that every token has an embedding; otherwise, text would be read as other tokens.

    Raises:
        SourceError: names the tokens whose ids are beyond the vocabulary.
    """
    vocabulary = Tokenizer.from_str(tokenizer_json).get_vocab()
    beyond = sorted((id_, t) for t, id_ in vocabulary.items() if id_ >= config.vocabulary_size)
    if beyond:
        named = ", ".join(f"{token!r} ({id_})" for id_, token in beyond[:5])
        raise SourceError(
            f"{len(beyond)} tokens of the tokenizer are beyond the vocabulary of "
            f"{config.vocabulary_size} embeddings: {named}"
        )
