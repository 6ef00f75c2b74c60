"""What the client's calls take and give: frozen values that know nothing of gRPC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict


class FinishReason(StrEnum):
    """Why a generated sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    STOP_STRING = "stop_string"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens that a request read, wrote, and found in the server's cache."""

    input_tokens: int
    output_tokens: int
    reused_tokens: int

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reused_tokens=self.reused_tokens + other.reused_tokens,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Where the server spent a request's time."""

    queue_seconds: float
    tokenize_seconds: float
    prefill_seconds: float
    decode_seconds: float
    total_seconds: float

    def __add__(self, other: "Timing") -> "Timing":
        """Of two requests, one after the other."""
        return Timing(
            queue_seconds=self.queue_seconds + other.queue_seconds,
            tokenize_seconds=self.tokenize_seconds + other.tokenize_seconds,
            prefill_seconds=self.prefill_seconds + other.prefill_seconds,
            decode_seconds=self.decode_seconds + other.decode_seconds,
            total_seconds=self.total_seconds + other.total_seconds,
        )


class EarlyStopping(StrEnum):
    """When a beam search is over, once it has as many finished hypotheses as beams."""

    HEURISTIC = "heuristic"
    """No live beam beats the worst of them at its present length."""
    FIRST = "first"
    """At once."""
    NEVER = "never"
    """No live beam could beat the worst of them at any length."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The output is JSON that follows ``schema``, a JSON schema as JSON."""

    schema: str


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole output matches ``pattern``, in the syntax of Rust's regex library."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Lark:
    """The output follows a context-free ``grammar`` in Lark's syntax, from the rule "start"."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Choices:
    """The output is one of ``values``."""

    values: tuple[str, ...]


Grammar = JsonSchema | Regex | Lark | Choices


class AttentionKind(StrEnum):
    """To the source of an encoder-decoder, or to the tokens before."""

    CROSS = "cross"
    SELF = "self"


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionOptions:
    """Which attention weights to tell; all layers and heads if none are named.

    ``kind``: by default the first that the model has.
    """

    kind: AttentionKind | None = None

    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    average: bool = False
    """One matrix, the mean."""
    alignments: bool = False
    """Also which part of the source each part of the text came from."""


class ScoreOptions(TypedDict, total=False):
    logprobs: bool
    top_logprobs: int | None
    source_language: str
    """As ``target_language``: of an encoder-decoder that knows several."""
    target_language: str
    version: str


class GenerationOptions(TypedDict, total=False):
    """How tokens are chosen and when a text ends. What is left out, the server decides."""

    temperature: float | None
    """0 is greedy, as is leaving it out."""
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float]
    """Added to the logits of tokens, by id."""
    beam_size: int | None
    length_penalty: float | None
    early_stopping: EarlyStopping | None
    num_hypotheses: int | None
    """Outputs for each input: best hypotheses, samples or alternatives."""
    no_repeat_ngram_size: int | None
    target_prefix: str | Sequence[str]
    """What the output begins with: one for all inputs, or one for each."""
    alternatives: bool | None
    grammar: Grammar | None
    bad_words: Sequence[str]
    max_new_tokens: int | None
    min_new_tokens: int | None
    stop_strings: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool | None
    max_seconds: float | None
    """End a text after this time, with what there is: ``FinishReason.DEADLINE``."""
    stop_before_deadline: bool | None
    """End it shortly before the call's deadline, with what there is."""
    token_ids: bool | None
    """Ask for the output's token ids besides its text."""
    logprobs: bool | None
    """Ask for the log-probability of each generated token."""
    top_logprobs: int | None
    prompt_logprobs: bool | None
    attention: AttentionOptions | None
    """Ask an encoder-decoder what its tokens attended to in the source."""
    echo: bool | None
    """Let the text begin with the input."""
    priority: int
    """Higher is served earlier."""
    version: str
    """A version of the model; the newest if left out."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; the role is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """A token, and the natural logarithm of its probability."""

    token_id: int
    token: str
    """The vocabulary's own spelling."""
    logprob: float
    top: tuple["TokenLogprob", ...] = ()
    """The likeliest tokens in its place, if they were asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One of several texts for the same input."""

    text: str
    token_ids: tuple[int, ...]
    """Empty unless they were asked for."""
    finish_reason: FinishReason | None
    score: float | None = None
    """A beam search's."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Empty unless they were asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionMatrix:
    """A head's weights; layer and head are -1 for a mean."""

    layer: int
    head: int
    weights: tuple[tuple[float, ...], ...]
    """A row for each target token, with a weight for each source token."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Characters of the source and of the text, the ends excluded."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """What a text's tokens attended to."""

    source_tokens: tuple[str, ...]
    target_tokens: tuple[str, ...]
    matrices: tuple[AttentionMatrix, ...]
    alignments: tuple[Alignment, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Text(Hypothesis):
    """What was generated for one input: the first hypothesis, and all of them."""

    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Empty unless they were asked for."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """All of them, best first, if more than one was asked for."""
    attention: Attention | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of one output of a stream; an output's pieces, joined, are its text.

    The last piece of an output, and only that one, has ``finish_reason``,
    ``usage`` (of that output) and ``timing``.
    """

    model: str
    index: int
    """Which input this continues."""
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    usage: Usage | None
    timing: Timing | None
    hypothesis: int = 0
    """Which hypothesis of that input."""
    logprobs: tuple[TokenLogprob, ...] = ()
    score: float | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """On the last piece of an input's first output, if they were asked for."""
    attention: Attention | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenization:
    token_ids: tuple[int, ...]
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What every response has. Outputs are in the order of the inputs."""

    model: str
    usage: Usage
    timing: Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class TextResult(Result):
    """What ``generate`` and ``translate`` give."""

    outputs: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """How likely a target is after its context."""

    score: float
    """The sum of its tokens' log-probabilities."""
    num_tokens: int
    logprobs: tuple[TokenLogprob, ...]
    """Empty unless they were asked for."""
    usage: Usage


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreResult(Result):
    outputs: tuple[Scored, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeResult(Result):
    outputs: tuple[Tokenization, ...]


class ModelKind(StrEnum):
    ENCODER = "encoder"
    DECODER = "decoder"
    ENCODER_DECODER = "encoder_decoder"


class ModelState(StrEnum):
    READY = "ready"
    REFUSED = "refused"
    LOADING = "loading"
    UNLOADING = "unloading"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """The export's check of the served graph against the reference module."""

    max_absolute_error: float
    greedy_tokens_compared: int
    greedy_tokens_equal: int
    min_cosine: float
    perplexity: float
    """Of the served graph over ``evaluation_tokens``; 0 for a model that writes no text."""
    fp32_perplexity: float
    evaluation_tokens: int
    float_cache_perplexity: float
    """Of the served graph before its cache was held in eight bits; 0 if it is not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingInfo:
    """What the vectors of a model are."""

    size: int
    is_normalized: bool
    pooling: str
    truncations: tuple[int, ...]
    """Sizes to which vectors may be cut; any if empty."""
    prompts: Mapping[str, str]
    default_prompt: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What a server says of one model; ``failure`` says why a refused one was refused."""

    name: str
    version: str
    state: ModelState | None
    failure: str
    kind: ModelKind | None
    tasks: tuple[str, ...]
    architecture: str
    precision: str
    license: str
    parameters: int
    vocabulary_size: int
    hidden_size: int
    max_length: int
    """In tokens."""
    source_language: str
    target_language: str
    languages: tuple[str, ...]
    """Of a multilingual model: those that it translates from and to."""
    labels: tuple[str, ...]
    has_chat_template: bool
    parity: Parity | None
    slots: int
    """Sequences that can decode at the same time."""
    mask_token: str
    """How a mask is written, of models that fill masks."""
    embedding: EmbeddingInfo | None
    """Of models that embed."""
    kv_cache: str
    """``float`` or ``int8``, of models that write text."""
    cache_bytes_per_token: int
    """What one token of one sequence takes in the cache."""
