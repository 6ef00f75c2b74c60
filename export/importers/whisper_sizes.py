"""The sizes of Whisper's models, from the files of ``transformers``."""

from export.importers.activations import activation
from export.importers.support import MAX_LAYERS
from export.importers.whisper_tables import WhisperSizes
from export.readers.feature_extractor import read_feature_extractor
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.audio_config import AudioConfig


def read_sizes(folder: HuggingFaceFolder) -> WhisperSizes:
    """The sizes in config.json, and the spectrogram of the feature extractor.

    Raises:
        SourceError, UnsupportedError: see :mod:`export.errors`.
    """
    config = folder.config
    return WhisperSizes(
        vocabulary_size=config.positive("vocab_size", 51865),
        hidden_size=config.positive("d_model", 384),
        encoder_layers=config.positive("encoder_layers", 4, maximum=MAX_LAYERS),
        encoder_heads=config.positive("encoder_attention_heads", 6),
        encoder_inner_size=config.positive("encoder_ffn_dim", 1536),
        decoder_layers=config.positive("decoder_layers", 4, maximum=MAX_LAYERS),
        decoder_heads=config.positive("decoder_attention_heads", 6),
        decoder_inner_size=config.positive("decoder_ffn_dim", 1536),
        max_target_tokens=config.positive("max_target_positions", 448),
        activation=activation(config, "activation_function", "gelu"),
        audio=_audio(folder),
    )


def _audio(folder: HuggingFaceFolder) -> AudioConfig:
    """The spectrogram of the feature extractor, for the encoder's positions."""
    file = read_feature_extractor(folder)
    check_supported(
        file,
        sampling_rate=(16_000,),
        dither=(0, 0.0),
        padding_value=(0, 0.0),
        do_normalize=(False,),
    )
    hop_size = file.positive("hop_length", 160)
    num_tokens = folder.config.positive("max_source_positions", 1500, maximum=1 << 16)
    return AudioConfig(
        num_samples=2 * hop_size * num_tokens,
        fft_size=file.positive("n_fft", 400),
        hop_size=hop_size,
        num_mel_bins=folder.config.positive("num_mel_bins", 80),
    )
