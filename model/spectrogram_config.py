"""The configuration of encoders that read a spectrogram as patches. Imports no torch."""

from model.position_config import ConfigStruct, PositionConfig, PositionKind


class SpectrogramConfig(ConfigStruct, frozen=True, kw_only=True):
    """The input of an Audio Spectrogram Transformer (Gong et al. 2021, section 2.1).

    Attributes:
        sample_rate: samples per second.
        num_frames: frames of a window, all of which the encoder reads.
        num_mel_bins: features per frame.
        frame_size: samples per frame.
        hop_size: samples from one frame to the next.
        fft_size: samples of a Fourier transform: a frame, then zeros.
        mean: subtracted from features.
        deviation: divides the difference.
        patch_size: frames, and features, of a patch.
        time_stride: frames from one patch to the next.
        frequency_stride: features from one patch to the next.
        num_class_tokens: number of learned vectors before those of the patches.
    """

    sample_rate: int = 16_000
    num_frames: int
    num_mel_bins: int
    frame_size: int = 400
    hop_size: int = 160
    fft_size: int = 512
    mean: float
    deviation: float
    patch_size: int
    time_stride: int
    frequency_stride: int
    num_class_tokens: int = 2

    @property
    def num_samples(self) -> int:
        """Samples of a window's frames."""
        return (self.num_frames - 1) * self.hop_size + self.frame_size

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches over the features, and over the frames."""
        return (
            (self.num_mel_bins - self.patch_size) // self.frequency_stride + 1,
            (self.num_frames - self.patch_size) // self.time_stride + 1,
        )

    @property
    def num_tokens(self) -> int:
        """Number of a window's vectors: class tokens and patches."""
        rows, columns = self.grid
        return self.num_class_tokens + rows * columns

    @property
    def position(self) -> PositionConfig:
        """The positions of these vectors: one learned vector each."""
        return PositionConfig(kind=PositionKind.LEARNED, max_positions=self.num_tokens)
