"""Jobs: the units of work that callers submit to an engine, and their maximum cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from server.bounds import MAX_ACTIVE_DIMS
from server.constraint import Constraint
from server.engine.decoding.options import (
    GREEDY,
    NO_LOGPROBS,
    NO_PROCESSORS,
    AttentionSelection,
    Beams,
    LogitsOptions,
    LogprobOptions,
    Sampling,
)


class Cost(msgspec.Struct, frozen=True):
    """Upper bounds on what jobs use: sequences, and tokens of sources, prompts and outputs."""

    num_sequences: int
    num_tokens: int
    num_new_tokens: int = 0  # the part of num_tokens to generate

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.num_sequences + other.num_sequences,
            self.num_tokens + other.num_tokens,
            self.num_new_tokens + other.num_new_tokens,
        )

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(
            self.num_sequences - other.num_sequences,
            self.num_tokens - other.num_tokens,
            self.num_new_tokens - other.num_new_tokens,
        )


def total_cost(costs: Sequence[Cost]) -> Cost:
    """Returns the sum of ``costs``, which has at least one item."""
    if len(costs) == 1:
        return costs[0]
    sequences, tokens, new_tokens = zip(
        *((cost.num_sequences, cost.num_tokens, cost.num_new_tokens) for cost in costs), strict=True
    )
    return Cost(sum(sequences), sum(tokens), sum(new_tokens))


class Delivery(Enum):
    """When the tokens of an output are published."""

    EACH = auto()
    """Each token immediately."""
    STREAM = auto()
    """Immediately; while many sequences run, the tokens of ``JOIN_SECONDS`` together. A beam search
    always publishes tokens as soon as its hypotheses agree on them."""
    WHOLE = auto()
    """All tokens at the end."""


# The time between two updates of a stream while many sequences run: a reader cannot tell more than
# 25 a second apart.
JOIN_SECONDS = 0.04


TextEnd = Callable[[int], bool]
"""Takes the next token of an output, and returns whether the output ends with it."""


class Candidates:
    """The only tokens that an output may contain: the logits of all others are -inf.

    ``find``: returns their ids, ascending. It is called once, on the lane's thread.
    """

    def __init__(self, find: Callable[[], npt.NDArray[np.int32]]) -> None:
        self._find = find

    @cached_property
    def ids(self) -> npt.NDArray[np.int32]:
        return self._find()


class PromptImage(NamedTuple):
    """An image in a prompt.

    Attributes:
        start: the index of its first token in the prompt.
        num_tokens: how many tokens it has there, one for each of its vectors.
        pixels: as the model's graph takes them: ``[height, width, channels]``, 0 to 255.
        key: equal for equal pixels only, and no token id: negative.
    """

    start: int
    num_tokens: int
    pixels: npt.NDArray[np.uint8]
    key: int

    @property
    def stop(self) -> int:
        """The index after its last token."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One prompt or source, and what to generate after it.

    Attributes:
        prompt: the decoder's first token ids, at least one.
        max_new_tokens: the most tokens of each output; 0 only prefills the prompt.
        source: the encoder's token ids; empty for a decoder-only model, for speech and for images.
        eos: tokens that end an output.
        sampling: how the next token is drawn.
        logits_options: changes to the logits before sampling.
        beams: beam search; the outputs are its best hypotheses.
        num_outputs: how many outputs the job has. Without ``beams`` and ``alternatives`` they are
            samples, each with its own random generator (``seed + output``).
        alternatives: whether output ``i`` begins with the ``i``-th likeliest first token.
        constraint: a grammar that each output follows.
        candidates: the only tokens that are generated; None for all. They include ``eos``, and no
            tokens that the model suppresses.
        logprob_options: which log-probabilities to return.
        attention: attention weights of the prompt, or of the source, to return; None for none.
        priority: jobs of higher priority are served earlier.
        deadline: the client's timeout, in the engine's clock (seconds).
        finish_by: when to stop and return the partial output, in the same clock (seconds).
        cache_scope: only jobs of the same scope and adapter share cached prefixes and prefills.
        client: the client's name, or empty; clients get equal shares of the slots while jobs wait.
        delivery: when new tokens are published.
        text_end: called on the lane's thread to make a detector of stop strings, which ends a beam
            search once its hypotheses agree on a text with one.
        samples: the encoder's source for speech: one window, as the model's graph takes it.
        num_audio_tokens: the number of vectors that the encoder makes of the window.
        images: of the prompt, in the order of their tokens.
        image: the encoder's source for images: pixels as in :class:`EncodingJob`.
        num_image_tokens: the number of vectors that the encoder makes of the image.
        adapter: the LoRA adapter to apply, counted from 1; 0 for none.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    source: tuple[int, ...] = ()
    eos: frozenset[int] = frozenset()
    sampling: Sampling = GREEDY
    logits_options: LogitsOptions = NO_PROCESSORS
    beams: Beams | None = None
    num_outputs: int = 1
    alternatives: bool = False
    constraint: Constraint | None = None
    candidates: Candidates | None = None
    logprob_options: LogprobOptions = NO_LOGPROBS
    attention: AttentionSelection | None = None
    priority: int = 0
    deadline: float | None = None
    finish_by: float | None = None
    cache_scope: str = ""
    client: str = ""
    delivery: Delivery = Delivery.EACH
    text_end: Callable[[], TextEnd] | None = None
    samples: npt.NDArray[np.int16] | None = field(default=None, compare=False)
    num_audio_tokens: int = 0
    images: tuple[PromptImage, ...] = field(default=(), compare=False)
    image: npt.NDArray[np.uint8] | None = field(default=None, compare=False)
    num_image_tokens: int = 0
    adapter: int = 0

    @property
    def prefix_scope(self) -> str:
        """``cache_scope`` of this adapter: keys and values of other adapters differ.

        No client's name has a null character.
        """
        return f"\0{self.adapter}\0{self.cache_scope}" if self.adapter else self.cache_scope

    @property
    def num_source_tokens(self) -> int:
        """The number of vectors that the encoder returns for the source."""
        return len(self.source) + self.num_audio_tokens + self.num_image_tokens

    @property
    def num_sequences(self) -> int:
        """The most slots that the job needs."""
        return self.num_outputs if self.beams is None else self.beams.size

    @property
    def is_single(self) -> bool:
        """Whether the job has a single sequence, without a beam search."""
        return self.num_sequences == 1 and self.beams is None

    @property
    def prefills_alone(self) -> bool:
        """Whether the prompt is prefilled in separate runs, without a cached prefix."""
        return self.logprob_options.prompt_logprobs is not None or self.attention is not None

    @property
    def prefix_keys(self) -> Sequence[int]:
        """The prompt as the prefix cache compares it: images have their keys, not their tokens."""
        if not self.images:
            return self.prompt
        keys = list(self.prompt)
        for image in self.images:
            keys[image.start : image.stop] = [image.key] * image.num_tokens
        return keys

    @property
    def cost(self) -> Cost:
        num_new = self.num_sequences * self.max_new_tokens
        num_read = self.num_source_tokens + len(self.prompt)
        return Cost(self.num_sequences, num_read + num_new, num_new)

    def remaining_seconds(self, now: float) -> float | None:
        """Returns the seconds until the deadline; None without one, or if the job has priority."""
        return None if self.deadline is None or self.priority > 0 else self.deadline - now


class EncodingJob(msgspec.Struct, frozen=True, eq=False):
    """One text, image, text with an image, or window of speech to encode.

    Attributes:
        token_ids: the text's token ids, at least one; empty for an image without text and for
            speech.
        segment_ids: one for each token; empty means all 0.
        num_attended: how many leading tokens are attended to; None for all. Only for models with
            the input ``attended_lengths``.
        logit_positions: indices of the tokens to predict, for a masked language model.
        word_positions: index of the first token of each word, for a model that scores spans of
            words for labels.
        label_positions: index of each label's token, for such a model.
        max_active_dims: how many of a sparse vector's largest weights to return.
        token_outputs: names of outputs with a row for each token to return too, from an embedding
            model.
        attention: attention weights to return too; None for none. With them, the text runs alone.
        is_bulk: whether it is background work, which other texts may overtake.
        deadline: the client's timeout, in the engine's clock (seconds).
        num_texts: the number of texts in the request, windows of long texts included.
        image: pixels as the model's graph takes them: ``[height, width, channels]``, 0 to 255.
        num_image_tokens: the number of vectors that the model makes of the image.
        samples: of the window: ``[samples]``.
        num_audio_tokens: the number of vectors that the model makes of the window.
        adapter: the LoRA adapter to apply, counted from 1; 0 for none.
    """

    token_ids: tuple[int, ...]
    segment_ids: tuple[int, ...] = ()
    num_attended: int | None = None
    logit_positions: tuple[int, ...] = ()
    word_positions: tuple[int, ...] = ()
    label_positions: tuple[int, ...] = ()
    max_active_dims: int = MAX_ACTIVE_DIMS
    token_outputs: tuple[str, ...] = ()
    attention: AttentionSelection | None = None
    is_bulk: bool = False
    deadline: float | None = None
    num_texts: int = 1
    image: npt.NDArray[np.uint8] | None = None
    num_image_tokens: int = 0
    samples: npt.NDArray[np.int16] | None = None
    num_audio_tokens: int = 0
    adapter: int = 0

    @property
    def num_sequences(self) -> int:
        return 1

    @property
    def num_tokens(self) -> int:
        """The number of vectors that the encoder computes: of tokens, the image or speech."""
        return len(self.token_ids) + self.num_image_tokens + self.num_audio_tokens

    @property
    def cost(self) -> Cost:
        return Cost(1, self.num_tokens)

    def remaining_seconds(self, now: float) -> float | None:
        """Returns the seconds until the deadline; None if there is none."""
        return None if self.deadline is None else self.deadline - now


Job = GenerationJob | EncodingJob
