"""Embeds spectrograms: from samples to the vectors of patches (Gong et al. 2021)."""

import torch
from torch import Tensor, nn

from model.basics import Linear
from model.config import ModelConfig
from model.embeddings import FirstEmbedding
from model.filter_bank import LogMelFilterBank
from model.spectrogram_config import SpectrogramConfig
from model.waveform import Waveforms


class SpectrogramEmbedding(FirstEmbedding):
    """The vectors of a spectrogram's patches, after its class tokens, with positions.

    Patches overlap. They are in rows of equal features, in the order of time; a patch's values are
    in rows of equal features, too. The map's weight is ``[features * frames, size]``.
    """

    features_of: Tensor
    frames_of: Tensor

    def __init__(self, model: ModelConfig, config: SpectrogramConfig) -> None:
        super().__init__(model)
        self.config = config
        self.spectrogram = LogMelFilterBank(config)
        self.patches = Linear(config.patch_size**2, model.hidden_size, bias=True)
        self.class_tokens = nn.Parameter(torch.empty(config.num_class_tokens, model.hidden_size))
        rows, columns = config.grid
        within = torch.arange(config.patch_size)
        # The features, and the frames, of each patch.
        first_features = config.frequency_stride * torch.arange(rows)[:, None]
        first_frames = config.time_stride * torch.arange(columns)[:, None]
        self.register_buffer("features_of", (first_features + within).flatten(), persistent=False)
        self.register_buffer("frames_of", (first_frames + within).flatten(), persistent=False)

    def look_up(self, inputs: Tensor) -> Tensor:
        """As :meth:`read`, for windows without padding."""
        return self.read(Waveforms.whole(inputs))

    def read(self, waveforms: Waveforms) -> Tensor:
        """The vectors of windows of at most ``num_samples``, without positions.

        Returns:
            ``[batch, tokens, hidden]``
        """
        config = self.config
        features = (self.spectrogram(waveforms) - config.mean) / config.deviation
        x = features.to(self.patches.weight.dtype).transpose(1, 2)  # [batch, features, frames]
        (rows, columns), size = config.grid, config.patch_size
        x = x.index_select(1, self.features_of).index_select(2, self.frames_of)
        x = x.reshape(-1, rows, size, columns, size).transpose(2, 3)
        x = self.patches(x.reshape(-1, rows * columns, size * size))
        return torch.cat([self.class_tokens.expand(x.shape[0], -1, -1), x], 1)

    def embed_waveforms(self, waveforms: Waveforms) -> Tensor:
        """Windows to ``[batch, tokens, hidden]``, with positions."""
        x = self.read(waveforms)
        embedded: Tensor = self(x, torch.arange(x.shape[1]), None)
        return embedded
