"""Requests of Transcribe and TranscribeStream, and their results."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from server.bounds import (
    MAX_AUDIO_BYTES,
    MAX_NAME_BYTES,
    MAX_PREFIX_BYTES,
    bounded,
    ruled,
    sized,
)
from server.service.generation_options import MAX_BEAMS, PRIORITIES
from server.service.requests import ModelRequest
from server.service.usage import Timing, Usage
from server.text.languages import language_name

# Whisper's names of languages whose names differ in Unicode's tables.
WHISPER_NAMES = {
    "bn": "bengali",
    "mi": "maori",
    "my": "myanmar",
    "nn": "nynorsk",
    "tl": "tagalog",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionOptions:
    """How speech is transcribed.

    Attributes:
        language: the speech's language, by its name in the model's manifest; if empty, the model
            detects it.
        translate: whether to translate into English.
        prompt: text before the speech, with the spelling of names and words to use.
        temperature: None decodes greedily, and retries at rising temperatures where the text is not
            plausible (Radford et al. 2022, section 4.5); a number applies to all windows.
        beam_size: number of beams while the temperature is 0.
        word_timestamps: whether to return when each word is said.
    """

    language: str = sized("", max_bytes=MAX_NAME_BYTES)
    translate: bool = False
    prompt: str = sized("", max_bytes=MAX_PREFIX_BYTES)
    temperature: float | None = bounded(None, 0.0, 1.0)
    beam_size: int = bounded(1, 1, MAX_BEAMS)
    word_timestamps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeRequest(ModelRequest):
    """A request of Transcribe. ``audio`` is a file in one of the formats of :mod:`model.audio`."""

    audio: bytes = ruled(f"{MAX_AUDIO_BYTES:,} bytes", b"")
    options: TranscriptionOptions = field(default_factory=TranscriptionOptions)
    priority: int = bounded(0, PRIORITIES.low, PRIORITIES.high)


@dataclass(frozen=True, slots=True)
class Word:
    """A word with its punctuation and the space before it.

    ``start_seconds`` and ``end_seconds`` count from the start of the recording.
    """

    text: str
    start_seconds: float
    end_seconds: float
    probability: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A phrase of a recording, delimited by the model's timestamps.

    Attributes:
        text: the text, including the space before it.
        start_seconds, end_seconds: times from the start of the recording.
        token_ids: the tokens of ``text``, without timestamps.
        mean_logprob: mean log-probability of the tokens in the segment's window.
        compression_ratio: zlib compression ratio of the window's text; high if it repeats itself.
        no_speech_probability: probability that nobody speaks in the window.
        temperature: sampling temperature at which the window was decoded.
        words: the words with their times; empty unless requested.
    """

    text: str
    start_seconds: float
    end_seconds: float
    token_ids: tuple[int, ...]
    mean_logprob: float
    compression_ratio: float
    no_speech_probability: float
    temperature: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class TranscriptionFinish:
    """The end of a transcription.

    ``language`` is the given or detected language of the speech; empty if there is no sound.
    ``duration_seconds`` is the length of the recording.
    """

    language: str
    language_probability: float
    duration_seconds: float
    usage: Usage
    timing: Timing

    @property
    def language_name(self) -> str:
        """The language's English name in lower case, such as "german", as Whisper spells it."""
        return WHISPER_NAMES.get(self.language) or language_name(self.language).lower()


@dataclass(frozen=True, slots=True)
class TranscriptionChunk:
    """The next segments of a recording, in order; the last chunk has ``finish``."""

    model: str
    segments: tuple[Segment, ...] = ()
    finish: TranscriptionFinish | None = None

    @property
    def num_values(self) -> int:
        """Segments, tokens and words."""
        return _num_values(self.segments)


@dataclass(frozen=True, slots=True)
class TranscribeResult:
    """The result of Transcribe. ``text`` joins all segments, without white space around them."""

    model: str
    text: str
    segments: tuple[Segment, ...]
    finish: TranscriptionFinish

    @property
    def num_values(self) -> int:
        """Segments, tokens and words."""
        return _num_values(self.segments)


def _num_values(segments: Iterable[Segment]) -> int:
    return sum(1 + len(segment.token_ids) + len(segment.words) for segment in segments)
