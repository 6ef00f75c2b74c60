"""The configuration of models that read speech as a log-mel spectrogram. Imports no torch."""

from typing import Annotated

import msgspec

from model.graph_spec import Count, Record, Size, TokenId
from model.position_config import ConfigStruct, PositionConfig, PositionKind

MAX_SAMPLE_RATE = 48_000
MAX_WINDOW_SAMPLES = 60 * MAX_SAMPLE_RATE
FrameSamples = Annotated[int, msgspec.Meta(ge=1, le=MAX_SAMPLE_RATE)]


class AudioConfig(ConfigStruct, frozen=True, kw_only=True):
    """The input of a speech encoder (Radford et al. 2022, section 2.2).

    A spectrogram of ``num_mel_bins`` features per frame, then two convolutions over 3 frames each;
    the second one halves the number of frames.

    Attributes:
        sample_rate: samples per second.
        num_samples: samples per window, all of which the encoder reads: a multiple of twice
            ``hop_size``.
        fft_size: samples per frame.
        hop_size: samples from one frame to the next.
    """

    sample_rate: int = 16_000
    num_samples: int = 480_000
    fft_size: int = 400
    hop_size: int = 160
    num_mel_bins: int = 80

    @property
    def num_frames(self) -> int:
        """Number of frames per window."""
        return self.num_samples // self.hop_size

    @property
    def num_tokens(self) -> int:
        """Number of the model's vectors per window."""
        return self.num_frames // 2

    @property
    def position(self) -> PositionConfig:
        """Sinusoids, added to these vectors."""
        return PositionConfig(kind=PositionKind.SINUSOIDAL, max_positions=self.num_tokens)


class AudioSpec(Record, frozen=True, kw_only=True):
    """One window of speech as the graph takes it: mono, int16, padded with silence.

    A window of a model with frames has any length from ``frame_size`` to ``num_samples``.

    Attributes:
        sample_rate: samples per second.
        num_samples: samples per window, or the most.
        num_tokens: the model's vectors per window of ``num_samples``.
        frame_size: samples that a frame depends on. Absent: windows have one length.
        hop_size: samples from one frame to the next.
    """

    sample_rate: Annotated[int, msgspec.Meta(ge=1, le=MAX_SAMPLE_RATE)]
    num_samples: Annotated[int, msgspec.Meta(ge=1, le=MAX_WINDOW_SAMPLES)]
    num_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    # Older servers lack these fields.
    frame_size: FrameSamples | msgspec.UnsetType = msgspec.UNSET
    hop_size: FrameSamples | msgspec.UnsetType = msgspec.UNSET

    @property
    def has_frames(self) -> bool:
        """Whether windows have any length."""
        return self.frame_size is not msgspec.UNSET

    def tokens_of(self, num_samples: int) -> int:
        """The model's vectors for a window of ``num_samples``."""
        frame_size, hop_size = self.frame_size, self.hop_size
        if frame_size is msgspec.UNSET or hop_size is msgspec.UNSET:
            return self.num_tokens
        return (num_samples - frame_size) // hop_size + 1

    @property
    def window_seconds(self) -> float:
        return self.num_samples / self.sample_rate


class CtcTokens(Record, frozen=True, kw_only=True):
    """Special tokens of connectionist temporal classification (Graves et al. 2006).

    Attributes:
        blank: of a frame without a new token.
        word_delimiter: between words. None: the model does not divide words.
    """

    blank: TokenId
    word_delimiter: TokenId | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        delimiter = self.word_delimiter
        return (self.blank,) if delimiter is None else (self.blank, delimiter)


class TranscriptionTokens(Record, frozen=True, kw_only=True):
    """Special tokens of a model that transcribes speech (Radford et al. 2022, section 2.3).

    Attributes:
        first_timestamp: the start of a window; the ids after it are later, each by
            ``timestamp_seconds``.
        num_timestamps: number of ids that are timestamps.
        no_timestamps: at the end of the prompt, asks for text without timestamps.
        transcribe: asks for text in the language of the speech. None: the model has one language.
        translate: asks for English text.
        previous: comes before the text that precedes the window.
        no_speech: predicted after ``decoder_start`` if nobody speaks.
        first_suppressed: never generated first.
        alignment_heads: layers and heads of the decoder whose cross-attention follows the speech;
            empty: all heads of the last half of the layers.
    """

    first_timestamp: TokenId
    num_timestamps: Size
    timestamp_seconds: Annotated[float, msgspec.Meta(gt=0)] = 0.02
    no_timestamps: TokenId
    transcribe: TokenId | None = None
    translate: TokenId | None = None
    previous: TokenId | None = None
    no_speech: TokenId | None = None
    first_suppressed: tuple[TokenId, ...] = ()
    alignment_heads: tuple[tuple[Count, Count], ...] = ()

    @property
    def ids(self) -> tuple[int, ...]:
        """All special tokens; of the timestamps, only the first and the last."""
        last_timestamp = self.first_timestamp + self.num_timestamps - 1
        optional = (self.transcribe, self.translate, self.previous, self.no_speech)
        given = (id_ for id_ in optional if id_ is not None)
        others = (self.no_timestamps, *self.first_suppressed)
        return (self.first_timestamp, last_timestamp, *others, *given)
