"""The options of a generation request, checked: each error names the field that it refuses."""

import math
from collections.abc import Callable, Sequence

from google.protobuf.message import Message as ProtoMessage

from protos.triune.v1 import inference_pb2 as pb
from server.engine.decoding.options import (
    Beams,
    EarlyStopping,
    LogitsOptions,
    LogprobOptions,
    Sampling,
)
from server.errors import InvalidArgumentError
from server.text.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

MAX_BEAMS = 64
MAX_SECONDS = 86400.0
MAX_TOP_LOGPROBS = 100
MAX_ENTRIES = 1024  # of a list of tokens or words
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 256

# Inclusive bounds. A number outside, NaN included, is refused.
BOUNDS: dict[str, tuple[float, float]] = {
    "sampling.temperature": (0.0, 100.0),
    "sampling.top_k": (0, 2**31 - 1),
    "sampling.top_p": (0.0, 1.0),
    "sampling.min_p": (0.0, 1.0),
    "sampling.typical_p": (0.0, 1.0),
    "sampling.repetition_penalty": (0.01, 100.0),
    "sampling.presence_penalty": (-2.0, 2.0),
    "sampling.frequency_penalty": (-2.0, 2.0),
    "decoding.beam_size": (1, MAX_BEAMS),
    "decoding.length_penalty": (-10.0, 10.0),
    "decoding.num_hypotheses": (1, MAX_BEAMS),
    "decoding.no_repeat_ngram_size": (0, 1024),
    "stopping.max_new_tokens": (1, 2**31 - 1),
    "stopping.min_new_tokens": (0, 2**31 - 1),
    "stopping.max_seconds": (0.0, MAX_SECONDS),
    "response.top_logprobs": (0, MAX_TOP_LOGPROBS),
}
# Of the numbers above, those that may not be 0.
POSITIVE = (
    "sampling.top_p",
    "sampling.typical_p",
    "stopping.max_seconds",
)
# Below it the likeliest token has all of the probability, and float32 no room for the rest.
MIN_TEMPERATURE = 1e-5
MAX_LOGIT_BIAS = 100.0
PRIORITIES = (-100, 100)
EARLY_STOPPING = {
    pb.EARLY_STOPPING_UNSPECIFIED: EarlyStopping.HEURISTIC,
    pb.EARLY_STOPPING_HEURISTIC: EarlyStopping.HEURISTIC,
    pb.EARLY_STOPPING_FIRST: EarlyStopping.FIRST,
    pb.EARLY_STOPPING_NEVER: EarlyStopping.NEVER,
}


def numbers(group: str, options: ProtoMessage) -> dict[str, float]:
    """The fields of ``options`` that have bounds and are set, each within them."""
    given = {}
    for field, (low, high) in BOUNDS.items():
        message, _, name = field.partition(".")
        if message != group or not options.HasField(name):
            continue
        value = getattr(options, name)
        if math.isnan(value) or not low <= value <= high:
            raise InvalidArgumentError(field, f"{value} is not in {low} … {high}")
        if field in POSITIVE and value == 0:
            raise InvalidArgumentError(field, f"0.0 is not in (0, {high}]")
        given[name] = value
    return given


def sampling(options: pb.SamplingOptions) -> Sampling:
    """How tokens are drawn; what is not set keeps its default."""
    given = numbers("sampling", options)
    temperature = given.get("temperature", 0.0)
    return Sampling(
        temperature=temperature if temperature >= MIN_TEMPERATURE else 0.0,
        top_k=int(given.get("top_k", 0)),
        top_p=given.get("top_p", 1.0),
        min_p=given.get("min_p", 0.0),
        typical_p=given.get("typical_p", 1.0),
        seed=options.seed if options.HasField("seed") else None,
    )


def logits_options(
    request_sampling: pb.SamplingOptions,
    decoding: pb.DecodingOptions,
    stopping: pb.StoppingOptions,
    vocabulary_size: int,
    encode: Callable[[Sequence[str]], Sequence[tuple[int, ...]]],
) -> LogitsOptions:
    """What changes the logits.

    Args:
        request_sampling, decoding, stopping: of the request.
        vocabulary_size: bounds token ids.
        encode: texts to token ids, without special tokens.
    """
    given = numbers("sampling", request_sampling)
    return LogitsOptions(
        repetition_penalty=given.get("repetition_penalty", 1.0),
        presence_penalty=given.get("presence_penalty", 0.0),
        frequency_penalty=given.get("frequency_penalty", 0.0),
        no_repeat_ngram_size=int(numbers("decoding", decoding).get("no_repeat_ngram_size", 0)),
        min_new_tokens=int(numbers("stopping", stopping).get("min_new_tokens", 0)),
        logit_bias=_logit_bias(request_sampling, vocabulary_size),
        bad_words=_bad_words(decoding, encode),
    )


def beams(request_sampling: Sampling, decoding: pb.DecodingOptions) -> Beams | None:
    """The beam search that is asked for, if any."""
    given = numbers("decoding", decoding)
    if decoding.early_stopping not in EARLY_STOPPING:
        raise InvalidArgumentError("decoding.early_stopping", "is none of the known rules")
    size = int(given.get("beam_size", 1))
    if size == 1:
        return None
    if not request_sampling.is_greedy:
        raise InvalidArgumentError(
            "decoding.beam_size", "beam search does not sample: leave out sampling.temperature"
        )
    if decoding.alternatives:
        raise InvalidArgumentError(
            "decoding.alternatives", "contradicts decoding.beam_size: choose one of the two"
        )
    return Beams(size, given.get("length_penalty", 1.0), EARLY_STOPPING[decoding.early_stopping])


def num_outputs(
    request_sampling: Sampling, search: Beams | None, decoding: pb.DecodingOptions, max_rows: int
) -> int:
    """Outputs for each input, which need at most ``max_rows`` rows of the cache."""
    count = int(numbers("decoding", decoding).get("num_hypotheses", 1))
    field = "decoding.num_hypotheses"
    if search is not None:
        if count > search.size:
            raise InvalidArgumentError(field, f"{count} of {search.size} beams")
        rows, field = search.size, "decoding.beam_size"
    else:
        rows = count
        if count > 1 and request_sampling.is_greedy and not decoding.alternatives:
            raise InvalidArgumentError(
                field,
                "more than 1 needs decoding.beam_size, decoding.alternatives or a "
                "sampling.temperature: greedy decoding gives the same text each time",
            )
    if rows > max_rows:
        raise InvalidArgumentError(field, f"{rows} given, this server has {max_rows} slots")
    return count


def logprob_options(response: pb.ResponseOptions, search: Beams | None) -> LogprobOptions:
    """What is told of tokens."""
    top = int(numbers("response", response).get("top_logprobs", 0))
    if top and search is not None:
        raise InvalidArgumentError("response.top_logprobs", "is not available with beam search")
    if top and not (response.logprobs or response.prompt_logprobs):
        raise InvalidArgumentError(
            "response.top_logprobs", "needs response.logprobs or response.prompt_logprobs"
        )
    return LogprobOptions(
        top_logprobs=top if response.logprobs else None,
        prompt_logprobs=top if response.prompt_logprobs else None,
    )


def max_new_tokens(stopping: pb.StoppingOptions) -> int | None:
    """The caller's bound, if there is one."""
    given = numbers("stopping", stopping)
    if "max_new_tokens" not in given:
        return None
    if given.get("min_new_tokens", 0) > given["max_new_tokens"]:
        raise InvalidArgumentError(
            "stopping.min_new_tokens",
            f"{stopping.min_new_tokens} is more than max_new_tokens {stopping.max_new_tokens}",
        )
    return int(given["max_new_tokens"])


def end_tokens(
    stopping: pb.StoppingOptions, eos: Sequence[int], vocabulary_size: int
) -> frozenset[int]:
    """The tokens that end a sequence; ``eos`` are the model's."""
    ids = _token_ids("stopping.stop_token_ids", stopping.stop_token_ids, vocabulary_size)
    return frozenset(ids if stopping.ignore_eos else (*eos, *ids))


def stop_strings(options: pb.StoppingOptions) -> tuple[str, ...]:
    """Refuses empty ones, too many and too long ones."""
    field, stops = "stopping.stop_strings", tuple(options.stop_strings)
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidArgumentError(field, f"{len(stops)} given, at most {MAX_STOP_STRINGS}")
    for index, stop in enumerate(stops):
        if not 0 < len(stop) <= MAX_STOP_STRING_CHARACTERS:
            raise InvalidArgumentError(
                f"{field}[{index}]", f"needs 1 … {MAX_STOP_STRING_CHARACTERS} characters"
            )
    return stops


def target_prefixes(decoding: pb.DecodingOptions, num_inputs: int) -> list[str]:
    """One for each input; empty where none is wanted."""
    given = list(decoding.target_prefix)
    if len(given) <= 1:
        return (given or [""]) * num_inputs
    if len(given) != num_inputs:
        raise InvalidArgumentError(
            "decoding.target_prefix", f"{len(given)} given for {num_inputs} inputs: one, or as many"
        )
    return given


def grammar(decoding: pb.DecodingOptions, stopping: pb.StoppingOptions) -> Grammar | None:
    """The grammar that is asked for, if any; not yet compiled."""
    kind = decoding.grammar.WhichOneof("grammar")
    if kind is None:
        return None
    if stopping.ignore_eos:
        raise InvalidArgumentError(
            "stopping.ignore_eos", "contradicts decoding.grammar, which says where a text ends"
        )
    if decoding.grammar.ByteSize() > MAX_GRAMMAR_BYTES:
        raise InvalidArgumentError(
            f"decoding.grammar.{kind}", f"has more than {MAX_GRAMMAR_BYTES} bytes"
        )
    if kind == "choices":
        values = tuple(decoding.grammar.choices.values)
        if not values or not all(values):
            raise InvalidArgumentError(
                "decoding.grammar.choices", "needs at least one text, and none empty"
            )
        return Grammar(GrammarKind.CHOICES, choices=values)
    return Grammar(GrammarKind(kind), getattr(decoding.grammar, kind))


def priority(value: int) -> int:
    """A request's priority."""
    low, high = PRIORITIES
    if not low <= value <= high:
        raise InvalidArgumentError("priority", f"{value} is not in {low} … {high}")
    return value


def _logit_bias(options: pb.SamplingOptions, vocabulary_size: int) -> tuple[tuple[int, float], ...]:
    field, bias = "sampling.logit_bias", dict(options.logit_bias)
    _token_ids(field, list(bias), vocabulary_size)
    for id_, value in bias.items():
        if math.isnan(value) or abs(value) > MAX_LOGIT_BIAS:
            raise InvalidArgumentError(
                f"{field}[{id_}]", f"{value} is not in {-MAX_LOGIT_BIAS} … {MAX_LOGIT_BIAS}"
            )
    return tuple(sorted(bias.items()))


def _bad_words(
    decoding: pb.DecodingOptions, encode: Callable[[Sequence[str]], Sequence[tuple[int, ...]]]
) -> tuple[tuple[int, ...], ...]:
    field, words = "decoding.bad_words", list(decoding.bad_words)
    if len(words) > MAX_ENTRIES:
        raise InvalidArgumentError(field, f"{len(words)} given, at most {MAX_ENTRIES}")
    for index, word in enumerate(words):
        if not word.strip():
            raise InvalidArgumentError(f"{field}[{index}]", "is empty")
    if not words:
        return ()
    rows = encode([form for word in words for form in (word, f" {word.lstrip()}")])
    return tuple(sorted({row for row in rows if row}))


def _token_ids(field: str, ids: Sequence[int], vocabulary_size: int) -> tuple[int, ...]:
    if len(ids) > MAX_ENTRIES:
        raise InvalidArgumentError(field, f"{len(ids)} given, at most {MAX_ENTRIES}")
    for id_ in ids:
        if not 0 <= id_ < vocabulary_size:
            raise InvalidArgumentError(field, f"{id_} is not in 0 … {vocabulary_size - 1}")
    return tuple(ids)
