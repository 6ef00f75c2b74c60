"""Options of Generate and Translate: frozen values, and the checks that need no model.

Options that the engine takes as they are, such as the temperature, are in
:mod:`server.engine.decoding.options`. Every error names the option that it rejects.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from model.bundle import AttentionKind
from server.bounds import Bounds, bounded, check_bounds
from server.engine.decoding.options import (
    Beams,
    EarlyStopping,
    LogitsOptions,
    LogprobOptions,
    Sampling,
)
from server.errors import InvalidArgumentError
from server.text.grammar import MAX_GRAMMAR_BYTES
from server.text.grammar import Grammar as Grammar  # noqa: PLC0414
from server.text.grammar import GrammarKind as GrammarKind  # noqa: PLC0414

MAX_BEAMS = 64
MAX_SECONDS = 86400.0
MAX_TOP_LOGPROBS = 100
MAX_ENTRIES = 1024  # of a list of tokens or words
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 256
MAX_INTEGER = 2**31 - 1
# Below it the likeliest token has all of the probability, and float32 no room for the rest.
MIN_TEMPERATURE = 1e-5
MAX_LOGIT_BIAS = 100.0
PRIORITIES = Bounds(-100, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """How sequences are searched for and restricted.

    ``num_hypotheses``: outputs per input. ``target_prefix``: what the output begins with, one
    text for all inputs or one each. ``alternatives``: one output for each of the likeliest first
    tokens. ``bad_words``: texts that never appear.
    """

    beam_size: int = bounded(1, 1, MAX_BEAMS)
    length_penalty: float = bounded(1.0, -10.0, 10.0)
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC
    num_hypotheses: int = bounded(1, 1, MAX_BEAMS)
    target_prefix: tuple[str, ...] = ()
    alternatives: bool = False
    grammar: Grammar | None = None
    bad_words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingOptions:
    """When a sequence ends, besides the end-of-sequence token.

    ``max_seconds`` counts from the arrival of the call; then the output ends with what there is.
    ``stop_before_deadline`` does the same shortly before the call's deadline.
    """

    max_new_tokens: int | None = bounded(None, 1, MAX_INTEGER)
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    max_seconds: float | None = bounded(None, 0.0, MAX_SECONDS, is_open=True)
    stop_before_deadline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """Which attention weights the response contains. No layers or heads means all of them.

    ``kind``: the first that the model has, of cross and self, if not given. ``average``: one
    matrix, the mean. ``alignments``: which part of the source each part of the text came from.
    """

    kind: AttentionKind | None = None
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    average: bool = False
    alignments: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseOptions:
    """What a response contains besides the text."""

    token_ids: bool = False
    logprobs: bool = False
    top_logprobs: int = bounded(0, 0, MAX_TOP_LOGPROBS)
    prompt_logprobs: bool = False
    echo: bool = False
    attention: AttentionOptions | None = None


def checked_sampling(sampling: Sampling) -> Sampling:
    """The same, with temperatures too low for float32 made greedy."""
    check_bounds(sampling)
    if sampling.temperature < MIN_TEMPERATURE:
        return replace(sampling, temperature=0.0)
    return sampling


def checked_logits_options(options: LogitsOptions, vocabulary_size: int) -> LogitsOptions:
    """The same, once its numbers and token ids are known to be in range."""
    check_bounds(options)
    bias = dict(options.logit_bias)
    check_token_ids("logit_bias", list(bias), vocabulary_size)
    for id_, value in bias.items():
        if math.isnan(value) or abs(value) > MAX_LOGIT_BIAS:
            raise InvalidArgumentError(
                f"logit_bias[{id_}]", f"{value} is not in {-MAX_LOGIT_BIAS} … {MAX_LOGIT_BIAS}"
            )
    return options


def beams_of(sampling: Sampling, decoding: DecodingOptions) -> Beams | None:
    """The beam search that the request asks for, if any."""
    check_bounds(decoding)
    if decoding.beam_size == 1:
        return None
    if not sampling.is_greedy:
        raise InvalidArgumentError(
            "beam_size", "beam search does not sample: leave out temperature"
        )
    if decoding.alternatives:
        raise InvalidArgumentError("alternatives", "contradicts beam_size: choose one of the two")
    return Beams(decoding.beam_size, decoding.length_penalty, decoding.early_stopping)


def num_outputs_of(
    sampling: Sampling, beams: Beams | None, decoding: DecodingOptions, max_sequences: int
) -> int:
    """Outputs per input. Together they may run as at most ``max_sequences`` sequences."""
    count = decoding.num_hypotheses
    field = "num_hypotheses"
    if beams is not None:
        if count > beams.size:
            raise InvalidArgumentError(field, f"{count} of {beams.size} beams")
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
            field, f"{num_sequences} given, this server has {max_sequences} slots"
        )
    return count


def logprob_options(response: ResponseOptions, beams: Beams | None) -> LogprobOptions:
    """Which log-probabilities the engine reports."""
    check_bounds(response)
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
    """Rejects numbers out of range, contradictions, and stop strings that are empty or too long."""
    check_bounds(stopping)
    longest = stopping.max_new_tokens
    if longest is not None and min_new_tokens > longest:
        raise InvalidArgumentError(
            "min_new_tokens", f"{min_new_tokens} is more than max_new_tokens {longest}"
        )
    stops = stopping.stop_strings
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidArgumentError(
            "stop_strings", f"{len(stops)} given, at most {MAX_STOP_STRINGS}"
        )
    for index, stop in enumerate(stops):
        if not 0 < len(stop) <= MAX_STOP_STRING_CHARACTERS:
            raise InvalidArgumentError(
                f"stop_strings[{index}]", f"needs 1 … {MAX_STOP_STRING_CHARACTERS} characters"
            )


def end_tokens(
    stopping: StoppingOptions, eos: Sequence[int], vocabulary_size: int
) -> frozenset[int]:
    """The tokens that end a sequence; ``eos`` are the model's."""
    check_token_ids("stop_token_ids", stopping.stop_token_ids, vocabulary_size)
    ids = stopping.stop_token_ids
    return frozenset(ids if stopping.ignore_eos else (*eos, *ids))


def target_prefixes(decoding: DecodingOptions, num_inputs: int) -> list[str]:
    """One per input; empty where none is given."""
    given = list(decoding.target_prefix)
    if len(given) <= 1:
        return (given or [""]) * num_inputs
    if len(given) != num_inputs:
        raise InvalidArgumentError(
            "target_prefix", f"{len(given)} given for {num_inputs} inputs: one, or as many"
        )
    return given


def checked_grammar(decoding: DecodingOptions, stopping: StoppingOptions) -> Grammar | None:
    """The grammar that the request asks for, if any; not compiled yet."""
    grammar = decoding.grammar
    if grammar is None:
        return None
    if stopping.ignore_eos:
        raise InvalidArgumentError(
            "ignore_eos", "contradicts grammar, which says where a text ends"
        )
    field = f"grammar.{grammar.kind}"
    if grammar.num_bytes > MAX_GRAMMAR_BYTES:
        raise InvalidArgumentError(field, f"has more than {MAX_GRAMMAR_BYTES} bytes")
    if grammar.kind == GrammarKind.CHOICES and not (grammar.choices and all(grammar.choices)):
        raise InvalidArgumentError(field, "needs at least one text, and none empty")
    return grammar


def check_bad_words(words: Sequence[str]) -> None:
    """Rejects too many words, and empty ones."""
    if len(words) > MAX_ENTRIES:
        raise InvalidArgumentError("bad_words", f"{len(words)} given, at most {MAX_ENTRIES}")
    for index, word in enumerate(words):
        if not word.strip():
            raise InvalidArgumentError(f"bad_words[{index}]", "is empty")


def check_priority(value: int) -> None:
    """Rejects priorities outside :data:`PRIORITIES`."""
    PRIORITIES.check("priority", value)


def check_token_ids(field: str, ids: Sequence[int], vocabulary_size: int) -> None:
    """Rejects too many ids, and ids outside the vocabulary."""
    if len(ids) > MAX_ENTRIES:
        raise InvalidArgumentError(field, f"{len(ids)} given, at most {MAX_ENTRIES}")
    for id_ in ids:
        if not 0 <= id_ < vocabulary_size:
            raise InvalidArgumentError(field, f"{id_} is not in 0 … {vocabulary_size - 1}")
