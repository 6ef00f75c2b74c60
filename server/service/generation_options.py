"""The options of Generate and Translate, and their validation.

Options that the engine uses unchanged, such as the temperature, are in
:mod:`server.engine.decoding.options`. Every error names the option that it rejects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from model.bundle import AttentionKind
from server.bounds import (
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    MAX_INTEGER,
    MAX_PREFIX_BYTES,
    MAX_TEXTS,
    Bounds,
    bounded,
    ruled,
    sized,
)
from server.engine.decoding.options import (
    Beams,
    EarlyStopping,
    LogitsOptions,
    LogprobOptions,
    Sampling,
)
from server.errors import InvalidArgumentError
from server.printable import counted
from server.text.grammar import MAX_GRAMMAR_BYTES
from server.text.grammar import Grammar as Grammar  # noqa: PLC0414
from server.text.grammar import GrammarKind as GrammarKind  # noqa: PLC0414

MAX_BEAMS = 64
MAX_SECONDS = 86400.0
MAX_TOP_LOGPROBS = 100
VOCABULARY = "in the vocabulary"
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 256
# At lower temperatures, the float32 softmax gives the most likely token all of the probability.
MIN_TEMPERATURE = 1e-5
MAX_LOGIT_BIAS = 100.0
PRIORITIES = Bounds(-100, 100)


class ShortlistMode(StrEnum):
    """Whether only the tokens of the model's lexical shortlist are generated.

    ``AUTO`` uses it if the model has one and the request has no grammar. With ``ON``, the request
    fails if ``AUTO`` would not use it.
    """

    AUTO = "auto"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """Search options and constraints on the output.

    ``num_hypotheses`` is the number of outputs per input. ``target_prefix`` forces the start of the
    output; it has one text for all inputs or one per input. ``alternatives`` starts one output from
    each of the most likely first tokens. ``bad_words`` are texts that are never generated.
    """

    beam_size: int = bounded(1, 1, MAX_BEAMS)
    length_penalty: float = bounded(1.0, -10.0, 10.0)
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC
    num_hypotheses: int = bounded(1, 1, MAX_BEAMS)
    target_prefix: tuple[str, ...] = sized((), max_items=MAX_TEXTS, max_bytes=MAX_PREFIX_BYTES)
    alternatives: bool = False
    grammar: Grammar | None = ruled("65,536 bytes", None)  # noqa: RUF009  (it is frozen)
    bad_words: tuple[str, ...] = sized((), max_items=MAX_ENTRIES, max_bytes=MAX_ENTRY_BYTES)
    shortlist: ShortlistMode = ShortlistMode.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingOptions:
    """When a sequence ends, apart from the end-of-sequence token.

    The partial output is returned ``max_seconds`` after the arrival of the call and, with
    ``stop_before_deadline``, shortly before the call's deadline.
    """

    max_new_tokens: int | None = bounded(None, 1, MAX_INTEGER)
    stop_strings: tuple[str, ...] = ruled(
        f"1 … {MAX_STOP_STRING_CHARACTERS} characters each", (), max_items=MAX_STOP_STRINGS
    )
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ruled(VOCABULARY, (), max_items=MAX_ENTRIES)
    max_seconds: float | None = bounded(None, 0.0, MAX_SECONDS, excludes_low=True)
    stop_before_deadline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """The attention weights to return. Empty ``layers`` or ``heads`` mean all.

    A ``kind`` of ``None`` means cross-attention if the model has it, else self-attention.
    ``average`` returns one matrix, the mean. ``alignments`` also aligns spans of source and output.
    """

    kind: AttentionKind | None = None
    layers: tuple[int, ...] = ruled("the model's", (), max_items=MAX_ENTRIES)
    heads: tuple[int, ...] = ruled("the model's", (), max_items=MAX_ENTRIES)
    average: bool = False
    alignments: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """The optional contents of a response."""

    token_ids: bool = False
    logprobs: bool = False
    top_logprobs: int = bounded(0, 0, MAX_TOP_LOGPROBS)
    prompt_logprobs: bool = False
    echo: bool = False
    attention: AttentionOptions | None = None


def effective_sampling(sampling: Sampling) -> Sampling:
    """Replaces temperatures below :data:`MIN_TEMPERATURE` by 0 (greedy)."""
    if sampling.temperature < MIN_TEMPERATURE:
        return replace(sampling, temperature=0.0)
    return sampling


def checked_logits_options(options: LogitsOptions, vocabulary_size: int) -> LogitsOptions:
    """Validates the token ids and values of ``logit_bias``; returns ``options``."""
    bias = dict(options.logit_bias)
    check_token_ids("logit_bias", list(bias), vocabulary_size)
    for id_, value in bias.items():
        if math.isnan(value) or abs(value) > MAX_LOGIT_BIAS:
            raise InvalidArgumentError(
                f"logit_bias[{id_}]", f"{value} is not in {-MAX_LOGIT_BIAS} … {MAX_LOGIT_BIAS}"
            )
    return options


def beams_of(sampling: Sampling, decoding: DecodingOptions) -> Beams | None:
    """The beam search options of a request; ``None`` if it does not use beam search."""
    if decoding.beam_size == 1:
        return None
    if not sampling.is_greedy:
        raise InvalidArgumentError("beam_size", "beam search does not sample: unset temperature")
    if decoding.alternatives:
        raise InvalidArgumentError("alternatives", "cannot be combined with beam_size")
    return Beams(decoding.beam_size, decoding.length_penalty, decoding.early_stopping)


def num_outputs_of(
    sampling: Sampling, beams: Beams | None, decoding: DecodingOptions, max_sequences: int
) -> int:
    """Validates and returns the number of outputs per input, for ``max_sequences`` slots."""
    count = decoding.num_hypotheses
    field = "num_hypotheses"
    if beams is not None:
        if count > beams.size:
            raise InvalidArgumentError(field, f"{count} is more than beam_size {beams.size}")
        num_sequences, field = beams.size, "beam_size"
    else:
        num_sequences = count
        if count > 1 and sampling.is_greedy and not decoding.alternatives:
            raise InvalidArgumentError(
                field,
                "more than 1 needs beam_size, alternatives or a temperature: "
                "greedy decoding gives the same text each time",
            )
    if num_sequences > max_sequences:
        raise InvalidArgumentError(
            field,
            f"{num_sequences} is more than the {counted(max_sequences, 'slot')} of this model",
        )
    return count


def logprob_options(response: ResponseOptions, beams: Beams | None) -> LogprobOptions:
    """Selects the log-probabilities that the engine must return."""
    top = response.top_logprobs
    if top and beams is not None:
        raise InvalidArgumentError("top_logprobs", "is not available with beam search")
    if top and not (response.logprobs or response.prompt_logprobs):
        raise InvalidArgumentError("top_logprobs", "needs logprobs or prompt_logprobs")
    return LogprobOptions(
        top_logprobs=top if response.logprobs else None,
        prompt_logprobs=top if response.prompt_logprobs else None,
    )


def check_stopping(stopping: StoppingOptions, min_new_tokens: int) -> None:
    """Rejects contradictory limits, and empty or too long stop strings."""
    longest = stopping.max_new_tokens
    if longest is not None and min_new_tokens > longest:
        raise InvalidArgumentError(
            "min_new_tokens", f"{min_new_tokens} is more than max_new_tokens {longest}"
        )
    for index, stop in enumerate(stopping.stop_strings):
        if not 0 < len(stop) <= MAX_STOP_STRING_CHARACTERS:
            raise InvalidArgumentError(
                f"stop_strings[{index}]", f"needs 1 … {MAX_STOP_STRING_CHARACTERS} characters"
            )


def end_tokens(
    stopping: StoppingOptions, eos: Sequence[int], vocabulary_size: int
) -> frozenset[int]:
    """The tokens that end a sequence. ``eos`` are the model's end-of-sequence tokens."""
    check_token_ids("stop_token_ids", stopping.stop_token_ids, vocabulary_size)
    ids = stopping.stop_token_ids
    return frozenset(ids if stopping.ignore_eos else (*eos, *ids))


def target_prefixes(decoding: DecodingOptions, num_inputs: int) -> list[str]:
    """The target prefix of each input; empty texts if none is given."""
    given = list(decoding.target_prefix)
    if len(given) <= 1:
        return (given or [""]) * num_inputs
    if len(given) != num_inputs:
        raise InvalidArgumentError(
            "target_prefix",
            f"{len(given)} given for {num_inputs} inputs, not one or one each",
        )
    return given


def checked_grammar(decoding: DecodingOptions, stopping: StoppingOptions) -> Grammar | None:
    """Validates a request's grammar, without compiling it; ``None`` if there is none."""
    grammar = decoding.grammar
    if grammar is None:
        return None
    if stopping.ignore_eos:
        raise InvalidArgumentError(
            "ignore_eos", "cannot be combined with grammar, which determines the end of the output"
        )
    field = f"grammar.{grammar.kind}"
    if grammar.num_bytes > MAX_GRAMMAR_BYTES:
        raise InvalidArgumentError(field, f"has more than {MAX_GRAMMAR_BYTES} bytes")
    if grammar.kind == GrammarKind.CHOICES and not (grammar.choices and all(grammar.choices)):
        raise InvalidArgumentError(field, "needs at least one text; none may be empty")
    return grammar


def uses_shortlist(decoding: DecodingOptions, *, has_shortlist: bool, on_device: bool) -> bool:
    """Whether a request uses the model's shortlist.

    Args:
        decoding: the request's options.
        has_shortlist: whether the model has a shortlist.
        on_device: whether tokens are sampled on the device, which does not support shortlists.
    """
    if decoding.shortlist == ShortlistMode.OFF:
        return False
    reason = ""
    if not has_shortlist:
        reason = "the model has none"
    elif on_device:
        reason = "is not available on a server that samples on the device"
    elif decoding.grammar is not None:
        reason = "cannot be combined with grammar, which may need any token"
    if reason and decoding.shortlist == ShortlistMode.ON:
        raise InvalidArgumentError("shortlist", reason)
    return not reason


def check_bad_words(words: Sequence[str]) -> None:
    """Rejects empty words."""
    for index, word in enumerate(words):
        if not word.strip():
            raise InvalidArgumentError(f"bad_words[{index}]", "is empty")


def check_token_ids(field: str, ids: Sequence[int], vocabulary_size: int) -> None:
    """Rejects ids outside the vocabulary, and more than :data:`MAX_ENTRIES`."""
    if len(ids) > MAX_ENTRIES:
        raise InvalidArgumentError(field, f"{len(ids)} given, at most {MAX_ENTRIES}")
    for id_ in ids:
        if not 0 <= id_ < vocabulary_size:
            raise InvalidArgumentError(field, f"{id_} is not in 0 … {vocabulary_size - 1}")
