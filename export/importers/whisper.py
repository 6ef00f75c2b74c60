"""Whisper (Radford et al. 2022): speech to text or to labels, as ``transformers`` saves it."""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of
from export.importers.support import bundle_name
from export.importers.whisper_classifier import CLASSIFIER, import_classifier
from export.importers.whisper_sizes import read_sizes
from export.importers.whisper_tables import (
    NUM_ENGLISH_TOKENS,
    START,
    alignment_heads,
    audio_spec,
    language_tokens,
    model_config,
    model_weights,
    suppressed,
    transcription_tokens,
)
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bundle import SpecialTokens, Task


def import_whisper(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, which transcribes or classifies, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config, generation = folder.config, folder.generation_config or folder.config
    check_supported(config, scale_embedding=(False,))
    if next(iter(config.texts("architectures")), None) == CLASSIFIER:
        return import_classifier(folder)
    check_supported(config, tie_word_embeddings=(True,))
    architecture = architecture_of(config, "WhisperForConditionalGeneration")
    sizes = read_sizes(folder)
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
        audio=audio_spec(sizes.audio),
        transcription=transcription_tokens(
            tokenizer,
            sizes.vocabulary_size,
            suppressed(generation, "begin_suppress_tokens"),
            alignment_heads(generation, sizes),
        ),
    )
