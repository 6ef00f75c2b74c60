"""Options of ``generate``, ``translate`` and ``score``.

Each option is declared once, here. Its name is the name of the request's field, so
``client.messages`` finds its field in the protobuf message. Its ``Flag``, if it has one, becomes
a flag of the command line (``client.option_flags``) and documents the option.

An option that is left out or ``None`` stays unset in the request: the server's default applies.
The server checks all values; an invalid one raises ``TriuneError`` with the field's path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypedDict

from client.tools import ChatOptions, ToolCall


@dataclass(frozen=True, kw_only=True, slots=True)
class Flag:
    """The command-line flag of an option.

    Args:
        help: one sentence with units and range; also the option's documentation.
        name: without the leading dashes; by default the option's name.
        default: the flag's value if it is not given; ``None`` leaves the option out.
        min: the least value that the command line accepts.
        negatable: for a boolean, whether ``--no-NAME`` sets it to false.
    """

    help: str
    name: str = ""
    default: object = None
    min: int | None = None
    negatable: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; the role is "system", "user", "assistant" or "tool".

    ``content`` is a text, or texts and images (contents of files) in their order. ``tool_calls``
    are those of an earlier answer, and ``reasoning`` is what the assistant thought before it. A
    message of the role "tool" has the result of the call ``tool_call_id``.
    """

    role: str
    content: str | Sequence[str | bytes]
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    reasoning: str = ""


class EarlyStopping(StrEnum):
    """When a beam search ends, once it has as many finished hypotheses as beams."""

    HEURISTIC = "heuristic"
    """Once no live beam, scored at its current length, beats the worst finished hypothesis."""
    FIRST = "first"
    """Immediately."""
    NEVER = "never"
    """Once no live beam, at any length, can beat the worst finished hypothesis."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The output is JSON that conforms to ``schema``, a JSON schema as JSON text."""

    schema: str


class ShortlistMode(StrEnum):
    """Whether only the tokens of an encoder-decoder's lexical shortlist are generated."""

    AUTO = "auto"
    """Use the shortlist if the model has one, unless there is a grammar."""
    OFF = "off"
    """Generate from the whole vocabulary."""
    ON = "on"
    """As ``AUTO``, but it is an error if the model has none or there is a grammar."""


class SentenceSplit(StrEnum):
    """Whether a text is translated sentence by sentence."""

    AUTO = "auto"
    """Split a text that has several sentences, unless an option needs the whole text."""
    OFF = "off"
    """Translate each text as a whole."""
    ON = "on"
    """As ``AUTO``, but an option that needs the whole text is an error."""


@dataclass(frozen=True, slots=True)
class Regex:
    """The whole output matches ``pattern``, in the syntax of Rust's ``regex`` crate."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Lark:
    """The output matches a context-free ``grammar`` in Lark's syntax; its start rule is "start"."""

    grammar: str


@dataclass(frozen=True, slots=True)
class Choices:
    """The output is one of ``values``."""

    values: tuple[str, ...]


Grammar = JsonSchema | Regex | Lark | Choices


class AttentionKind(StrEnum):
    """Which attention of the model is meant."""

    CROSS = "cross"
    """Output tokens attend to the source tokens of an encoder-decoder."""
    SELF = "self"
    """Output tokens attend to the preceding tokens: the prompt and the output so far."""
    ENCODER = "encoder"
    """Source tokens attend to each other, in the encoder of an encoder-decoder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionOptions:
    """Which attention weights to return."""

    kind: AttentionKind | None = None
    """By default cross-attention if the model has it, else self-attention."""
    layers: tuple[int, ...] = ()
    """Counted from 0; empty means all."""
    heads: tuple[int, ...] = ()
    """Counted from 0; empty means all."""
    average: bool = False
    """Return one matrix, the mean over the selected layers and heads."""
    alignments: bool = False
    """Also return which characters of the source each part of the output came from."""


class SamplingOptions(TypedDict, total=False):
    """How the next token is drawn. Without a temperature, decoding is greedy."""

    temperature: Annotated[
        float | None, Flag(help="Sampling temperature, up to 100. 0, the default, is greedy.")
    ]
    top_k: Annotated[int | None, Flag(help="Sample from the k most likely tokens; 0 keeps all.")]
    top_p: Annotated[
        float | None,
        Flag(help="Nucleus sampling: the smallest set of tokens with this probability, in (0, 1]."),
    ]
    min_p: Annotated[
        float | None,
        Flag(help="Drop tokens below this share of the top token's probability, in [0, 1]."),
    ]
    typical_p: Annotated[
        float | None, Flag(help="Locally typical sampling with this probability mass, in (0, 1].")
    ]
    seed: Annotated[
        int | None, Flag(help="Seed in [0, 2^64); the same seed gives the same output.", min=0)
    ]
    repetition_penalty: Annotated[
        float | None,
        Flag(help="Penalise tokens seen so far, in [0.01, 100]; 1 has no effect."),
    ]
    presence_penalty: Annotated[
        float | None,
        Flag(help="Subtract this from the logits of generated tokens, in [-2, 2]."),
    ]
    frequency_penalty: Annotated[
        float | None,
        Flag(help="Subtract this for each time a token was generated, in [-2, 2]."),
    ]
    logit_bias: Mapping[int, float]
    """Added to the logits of tokens, by token id; each in [-100, 100]."""


class DecodingOptions(TypedDict, total=False):
    """Search options and constraints on the output."""

    beam_size: Annotated[int | None, Flag(help="Number of beams; 1 is no beam search.")]
    length_penalty: Annotated[
        float | None,
        Flag(help="Exponent of the length by which a beam's score is divided; 1 by default."),
    ]
    early_stopping: Annotated[EarlyStopping | None, Flag(help="When a beam search ends.")]
    num_hypotheses: Annotated[
        int | None, Flag(help="Outputs per input: best beams, samples or alternatives.")
    ]
    no_repeat_ngram_size: Annotated[
        int | None, Flag(help="Never generate the same n-gram of this many tokens twice.")
    ]
    encoder_no_repeat_ngram_size: Annotated[
        int | None, Flag(help="Never generate an n-gram of this many tokens of the input.")
    ]
    target_prefix: Annotated[
        str | Sequence[str], Flag(help="Force the output to begin with this text.")
    ]
    """One prefix for all inputs, or one for each."""
    alternatives: Annotated[
        bool | None, Flag(help="Start one output from each of the most likely first tokens.")
    ]
    grammar: Grammar | None
    """The grammar that the whole output must match."""
    bad_words: Annotated[Sequence[str], Flag(name="bad-word", help="Never generate this text.")]
    shortlist: Annotated[
        ShortlistMode | None,
        Flag(help="Generate only likely translations of the source's tokens, which is faster."),
    ]


class StoppingOptions(TypedDict, total=False):
    """When an output ends."""

    max_new_tokens: Annotated[
        int | None, Flag(help="Stop an output after this many tokens.", default=256)
    ]
    min_new_tokens: Annotated[
        int | None, Flag(help="Do not stop an output before this many tokens.")
    ]
    ignore_eos: Annotated[bool | None, Flag(help="Continue past the end-of-sequence token.")]
    stop_strings: Annotated[
        Sequence[str], Flag(name="stop", help="Stop an output just before this string.")
    ]
    stop_token_ids: Annotated[
        Sequence[int], Flag(name="stop-token-id", help="Stop an output at this token id.")
    ]
    max_seconds: Annotated[
        float | None,
        Flag(help="Stop after this many seconds and return the partial output."),
    ]
    """The finish reason is then ``FinishReason.DEADLINE``."""
    stop_before_deadline: Annotated[
        bool | None,
        Flag(help="Stop shortly before the call's deadline and return the partial output."),
    ]


class ResponseOptions(TypedDict, total=False):
    """Optional contents of the response."""

    token_ids: Annotated[bool | None, Flag(help="Return the output's token ids too.")]
    logprobs: Annotated[
        bool | None, Flag(help="With --json: return the log-probability of each token too.")
    ]
    top_logprobs: int | None
    """Also return the log-probabilities of this many most likely tokens per step, up to 100."""
    prompt_logprobs: bool | None
    """Return the log-probabilities of the prompt's tokens, except the first."""
    attention: AttentionOptions | None
    """Which attention weights of the first hypothesis to return."""
    echo: Annotated[bool | None, Flag(help="Prepend the input to the output.")]


class GenerationOptions(
    SamplingOptions, DecodingOptions, StoppingOptions, ResponseOptions, total=False
):
    """The options that ``generate`` and ``translate`` share."""

    priority: Annotated[
        int, Flag(help="Higher is scheduled earlier, in [-100, 100]; one step is worth 10 s.")
    ]
    version: Annotated[str, Flag(help="Model version; the newest by default.")]


class GenerateOptions(GenerationOptions, ChatOptions, total=False):
    """The options of ``generate``."""

    suffix: str
    """Write what is between each input and this text, with a model that fills in the middle."""


class TranslationOptions(GenerationOptions, total=False):
    """The options of ``translate``."""

    sentence_split: Annotated[
        SentenceSplit | None, Flag(help="Translate texts sentence by sentence.")
    ]


class ScoreOptions(TypedDict, total=False):
    """The options of ``score``."""

    logprobs: bool
    """Return the log-probability of each token too."""
    top_logprobs: int | None
    """Also return the log-probabilities of this many most likely tokens per step, up to 100."""
    source_language: Annotated[
        str, Flag(help="Source language of a multilingual encoder-decoder, by its own name.")
    ]
    target_language: Annotated[
        str, Flag(help="Target language of a multilingual encoder-decoder, by its own name.")
    ]
    version: Annotated[str, Flag(help="Model version; the newest by default.")]
