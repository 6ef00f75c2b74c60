"""Options and results of ``transcribe``, without gRPC types.

Times are in seconds from the start of the recording.
"""

from dataclasses import dataclass
from typing import Annotated, TypedDict

from client.options import Flag
from client.results import Result, Timing, Usage


class TranscriptionOptions(TypedDict, total=False):
    """The options of ``transcribe``, declared as in ``client.options``."""

    language: Annotated[str, Flag(help="Language of the speech; by default the model detects it.")]
    translate: Annotated[bool, Flag(help="Translate to English.")]
    prompt: Annotated[
        str, Flag(help="Text that precedes the speech: names and words to spell like this.")
    ]
    temperature: Annotated[
        float | None,
        Flag(help="Sampling temperature, up to 1; by default 0, and higher if the text fails."),
    ]
    beam_size: Annotated[
        int | None, Flag(help="Number of beams while the temperature is 0; 1 is no beam search.")
    ]
    word_timestamps: Annotated[
        bool, Flag(name="words", help="With --json: return when each word is said.")
    ]
    priority: Annotated[
        int, Flag(help="Higher is scheduled earlier, in [-100, 100]; one step is worth 10 s.")
    ]
    version: Annotated[str, Flag(help="Model version; the newest by default.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """A word with its punctuation and the space before it."""

    text: str
    start_seconds: float
    end_seconds: float
    probability: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A phrase of a recording, delimited by the model's timestamps.

    The model transcribes a recording in windows; a window often has several segments.
    """

    text: str
    """The text, including the space before it."""
    start_seconds: float
    end_seconds: float
    token_ids: tuple[int, ...]
    mean_logprob: float
    """Mean log-probability of the tokens in the segment's window."""
    compression_ratio: float
    """zlib compression ratio of the window's text; high if the text repeats itself."""
    no_speech_probability: float
    """Probability that nobody speaks in the window."""
    temperature: float
    """Sampling temperature at which the window was decoded."""
    words: tuple[Word, ...] = ()
    """Empty unless ``word_timestamps`` was set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscriptionFinish:
    """The end of a transcription."""

    language: str
    """The requested or detected language of the speech."""
    language_probability: float
    duration_seconds: float
    """Length of the recording in seconds."""
    usage: Usage
    timing: Timing


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscriptionPiece:
    """The next segments of a stream; only the last piece has ``finish``."""

    model: str
    segments: tuple[Segment, ...]
    finish: TranscriptionFinish | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscribeResult(Result):
    """The result of ``transcribe``, of one recording."""

    text: str
    """The joined text of all segments."""
    segments: tuple[Segment, ...]
    language: str
    """The requested or detected language of the speech."""
    language_probability: float
    duration_seconds: float
    """Length of the recording in seconds."""
