"""Small random models of speech, as ``transformers`` saves them."""

from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor
from transformers import WhisperForConditionalGeneration as Whisper

from export.checkpoint import Checkpoint
from export.importers.whisper import import_whisper
from export.readers.hugging_face import read_folder

WINDOW_SECONDS = 2
LANGUAGES = ("en", "de", "fr")
EOS = 256
START = EOS + 1
_AFTER_LANGUAGES = (
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{name}|>" for name in LANGUAGES),
    *_AFTER_LANGUAGES,
)
NO_TIMESTAMPS = EOS + len(SPECIAL) - 1
FIRST_TIMESTAMP = NO_TIMESTAMPS + 1
VOCABULARY_SIZE = FIRST_TIMESTAMP + 50 * WINDOW_SECONDS + 1
ALIGNMENT_HEADS = [[0, 3], [1, 0], [1, 2]]
SUPPRESSED = (START, NO_TIMESTAMPS - 1)  # the second one is <|nospeech|>, as in real models


def feature_extractor(feature_size: int = 80) -> WhisperFeatureExtractor:
    """Makes the spectrograms of :func:`network`'s windows."""
    return WhisperFeatureExtractor(feature_size=feature_size, chunk_length=WINDOW_SECONDS)


def network(seed: int = 0) -> Whisper:
    """A random model with windows of 2 s, three languages and one token for each byte."""
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=VOCABULARY_SIZE,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=50 * WINDOW_SECONDS,
        max_target_positions=224,
        init_std=0.25,
        pad_token_id=EOS,
        bos_token_id=EOS,
        eos_token_id=EOS,
        decoder_start_token_id=START,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model: Whisper = Whisper(config).eval()
    model.generation_config = GenerationConfig(
        eos_token_id=EOS,
        pad_token_id=EOS,
        decoder_start_token_id=START,
        suppress_tokens=list(SUPPRESSED),
        begin_suppress_tokens=[32, EOS],
        alignment_heads=ALIGNMENT_HEADS,
    )
    return model


def save(folder: Path, seed: int = 0) -> None:
    """Saves :func:`network` with its tokenizer and the sizes of its spectrogram."""
    network(seed).save_pretrained(folder)
    feature_extractor().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer_json())


def tokenizer_json() -> str:
    """A tokenizer with a token for each byte, then the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: id_ for id_, piece in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer.to_str()


def checkpoint(folder: Path, seed: int = 0) -> Checkpoint:
    """The same, imported. ``folder``: for its files."""
    save(folder, seed)
    return imported(folder)


def imported(folder: Path) -> Checkpoint:
    """The model that :func:`save` wrote."""
    return import_whisper(read_folder(folder))


def english(model: Checkpoint) -> Checkpoint:
    """``model`` as one of English alone, without tokens of languages and tasks."""
    assert model.transcription is not None
    tokens = msgspec.structs.replace(model.transcription, transcribe=None, translate=None)
    return replace(model, languages={}, source_language="en", transcription=tokens)
