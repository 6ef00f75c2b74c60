"""Whisper (Radford et al. 2022): speech to text, as ``transformers`` saves it."""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of
from export.importers.support import MAX_LAYERS, bundle_name
from export.importers.whisper_tables import (
    NUM_ENGLISH_TOKENS,
    START,
    WhisperSizes,
    alignment_heads,
    audio_spec,
    language_tokens,
    model_config,
    model_weights,
    suppressed,
    transcription_tokens,
)
from export.readers.feature_extractor import read_feature_extractor
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.audio_config import AudioConfig
from model.bundle import SpecialTokens, Task


def import_whisper(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``WhisperForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config, generation = folder.config, folder.generation_config or folder.config
    check_supported(config, tie_word_embeddings=(True,), scale_embedding=(False,))
    architecture = architecture_of(config, "WhisperForConditionalGeneration")
    audio = _audio(folder)
    sizes = WhisperSizes(
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
        audio=audio,
    )
    model = model_config(sizes, config.origin)
    tokenizer = folder.tokenizer
    languages = language_tokens(tokenizer, sizes.vocabulary_size)
    return Checkpoint(
        config=model,
        weights=model_weights(model, folder.weights),
        tokenizer_json=folder.tokenizer_json,
        architecture=architecture,
        tasks=(Task.TRANSCRIBE,),
        special_tokens=SpecialTokens(
            eos=generation.integers("eos_token_id") or config.integers("eos_token_id"),
            pad=config.integer("pad_token_id", 0),
            decoder_start=tokenizer.token_to_id(START),
            suppressed=suppressed(generation, "suppress_tokens"),
        ),
        languages=languages,
        source_language="en" if sizes.vocabulary_size == NUM_ENGLISH_TOKENS else None,
        license=folder.license,
        name=bundle_name(folder.path),
        audio=audio_spec(audio),
        transcription=transcription_tokens(
            tokenizer,
            sizes.vocabulary_size,
            suppressed(generation, "begin_suppress_tokens"),
            alignment_heads(generation, sizes),
        ),
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
