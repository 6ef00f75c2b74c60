"""Decoding options of a job: frozen values. The service validates them with ``check_fields``."""

from dataclasses import dataclass
from enum import StrEnum

from model.bundle import AttentionKind
from server.bounds import MAX_ENTRIES, bounded, ruled
from server.engine.decoding.bad_words import BadWordIds


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling options.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``typical_p`` 1 keep all
    tokens. Each sequence has its own random generator, seeded with ``seed``.
    """

    temperature: float = bounded(0.0, 0.0, 100.0)
    top_k: int = bounded(0, 0, 2**31 - 1)
    top_p: float = bounded(1.0, 0.0, 1.0, excludes_low=True)  # Holtzman et al. 2020
    min_p: float = bounded(0.0, 0.0, 1.0)  # Nguyen et al. 2024
    typical_p: float = bounded(1.0, 0.0, 1.0, excludes_low=True)  # Meister et al. 2023
    seed: int | None = bounded(None, 0, 2**64 - 1)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class LogitsOptions:
    """Options of :mod:`server.engine.decoding.logits_processors`."""

    repetition_penalty: float = bounded(1.0, 0.01, 100.0)  # Keskar et al. 2019
    presence_penalty: float = bounded(0.0, -2.0, 2.0)
    frequency_penalty: float = bounded(0.0, -2.0, 2.0)
    no_repeat_ngram_size: int = bounded(0, 0, 128)  # Paulus et al. 2018
    min_new_tokens: int = bounded(0, 0, 2**31 - 1)
    logit_bias: tuple[tuple[int, float], ...] = ruled(
        "ids in the vocabulary, -100 … 100 each", (), max_items=MAX_ENTRIES
    )  # (token id, value to add)
    bad_word_ids: BadWordIds | None = None
    encoder_no_repeat_ngram_size: int = bounded(0, 0, 128)  # Roller et al. 2020, section 4.4


class EarlyStopping(StrEnum):
    """When a beam search stops, once it has as many finished hypotheses as beams."""

    HEURISTIC = "heuristic"  # when no live beam beats the worst finished one at its current length
    FIRST = "first"  # immediately
    NEVER = "never"  # when no live beam can beat the worst finished one at any length


@dataclass(frozen=True, slots=True)
class Beams:
    """Beam search. A finished hypothesis scores ``sum(log p) / length ** length_penalty``."""

    size: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC


@dataclass(frozen=True, slots=True)
class AttentionSelection:
    """The attention weights to return.

    ``average``: returns the mean over layers and heads instead of each head. ``from_token``: the
    first prompt token whose weights are returned.
    """

    kind: AttentionKind
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    average: bool
    from_token: int = 0


@dataclass(frozen=True, slots=True)
class LogprobOptions:
    """Log-probabilities to return.

    Attributes:
        top_logprobs: how many top tokens to return at each generated token; 0 returns that token's
            own log-probability only, None returns none.
        are_processed: takes log-probabilities and beam scores from the logits after processors and
            the constraint, before the temperature; else from the model's logits.
        prompt_logprobs: as ``top_logprobs``, for prompt tokens, from the model's logits.
        first_token_ids: tokens whose log-probabilities after the prompt are returned, from the
            model's logits.
    """

    top_logprobs: int | None = None
    are_processed: bool = False
    prompt_logprobs: int | None = None
    first_token_ids: tuple[int, ...] = ()


GREEDY = Sampling()
NO_PROCESSORS = LogitsOptions()
NO_LOGPROBS = LogprobOptions()
