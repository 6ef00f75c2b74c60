"""Whisper (Radford et al. 2022) as CTranslate2 stores it.

Names: CTranslate2, ``specs/whisper_spec.py`` and ``specs/transformer_spec.py``. Queries, keys and
values are packed as here. Only the numbers of heads are stored; weights give the other sizes.
"""

import re
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError, UnsupportedError
from export.importers.renaming import Rename, Transform, per_layer, rename
from export.importers.support import MAX_LAYERS, bundle_name
from export.importers.whisper_tables import (
    NUM_ENGLISH_TOKENS,
    START,
    WhisperSizes,
    alignment_heads,
    as_linear_map,
    audio_spec,
    language_tokens,
    model_config,
    suppressed,
    transcription_tokens,
)
from export.readers.ctranslate2 import CTranslate2Model
from export.readers.fields import Fields
from export.supported import check_supported
from export.tokenization.hugging_face import parse_tokenizer, read_fields, read_tokenizer
from model.audio_config import MAX_WINDOW_SAMPLES, AudioConfig
from model.bundle import SpecialTokens, Task
from model.config import ModelConfig, StackConfig
from model.positions import sinusoids

ARCHITECTURE = "WhisperForConditionalGeneration"
REVISION = 3
CONFIG_FILE, PROCESSOR_FILE = "config.json", "preprocessor_config.json"
END = "<|endoftext|>"
TOKENS, PROJECTION = "decoder/embeddings/weight", "decoder/projection/weight"
ENCODER_POSITIONS = "encoder/position_encodings/encodings"
DECODER_POSITIONS = "decoder/position_encodings/encodings"
SAMPLE_RATE, FFT_SIZE, HOP_SIZE = 16_000, 400, 160
GELU = 3  # include/ctranslate2/ops/activation.h
CHECKED: dict[str, tuple[object, ...]] = {
    "decoder/activation": (GELU,),
    "decoder/alibi": (0,),
    "decoder/pre_norm": (1,),
    "decoder/scale_embeddings": (0,),
    "decoder/start_from_zero_embedding": (0,),
}


def import_whisper_ctranslate2(model: CTranslate2Model) -> Checkpoint:
    """The Whisper model in the folder of ``model``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    if model.revision != REVISION:
        raise UnsupportedError(
            f"{model.path.name}: revision {model.revision} of {model.spec} is not supported; "
            f"supported: {REVISION}"
        )
    check_supported(model.settings, **CHECKED)
    folder = model.path.parent
    file = read_fields(folder / CONFIG_FILE)
    _check_processor(folder / PROCESSOR_FILE)
    tokenizer_json = read_tokenizer(folder, Fields({}, CONFIG_FILE))
    tokenizer = parse_tokenizer(tokenizer_json, folder)
    end = _token(tokenizer, END)
    sizes = _sizes(model)
    config = model_config(sizes, model.path.name)
    return Checkpoint(
        config=config,
        weights=_weights(model, config),
        tokenizer_json=tokenizer_json,
        architecture=ARCHITECTURE,
        tasks=(Task.TRANSCRIBE,),
        special_tokens=SpecialTokens(
            eos=(end,),
            pad=end,
            decoder_start=_token(tokenizer, START),
            suppressed=suppressed(file, "suppress_ids"),
        ),
        languages=language_tokens(tokenizer, sizes.vocabulary_size),
        source_language="en" if sizes.vocabulary_size == NUM_ENGLISH_TOKENS else None,
        license="unknown",
        name=bundle_name(folder),
        audio=audio_spec(sizes.audio),
        transcription=transcription_tokens(
            tokenizer,
            sizes.vocabulary_size,
            suppressed(file, "suppress_ids_begin"),
            alignment_heads(file, sizes),
        ),
    )


def _check_processor(path: Path) -> None:
    """Checks the spectrogram. Few folders have this file; others use the usual spectrogram."""
    if path.is_file():
        check_supported(
            read_fields(path),
            sampling_rate=(SAMPLE_RATE,),
            n_fft=(FFT_SIZE,),
            hop_length=(HOP_SIZE,),
        )


def _token(tokenizer: Tokenizer, name: str) -> int:
    id_: int | None = tokenizer.token_to_id(name)
    if id_ is None:
        raise SourceError(f"the tokenizer has no token {name}")
    return id_


def _sizes(model: CTranslate2Model) -> WhisperSizes:
    vocabulary_size, hidden_size = _shape(model, TOKENS, 2)
    num_samples = 2 * HOP_SIZE * _shape(model, ENCODER_POSITIONS, 2)[0]
    if num_samples > MAX_WINDOW_SAMPLES:
        raise SourceError(f"{model.path.name}: a window of {num_samples} samples is too long")
    return WhisperSizes(
        vocabulary_size=vocabulary_size,
        hidden_size=hidden_size,
        encoder_layers=_num_layers(model, "encoder"),
        encoder_heads=model.settings.positive("encoder/num_heads"),
        encoder_inner_size=_shape(model, "encoder/layer_0/ffn/linear_0/weight", 2)[0],
        decoder_layers=_num_layers(model, "decoder"),
        decoder_heads=model.settings.positive("decoder/num_heads"),
        decoder_inner_size=_shape(model, "decoder/layer_0/ffn/linear_0/weight", 2)[0],
        max_target_tokens=_shape(model, DECODER_POSITIONS, 2)[0],
        audio=AudioConfig(
            sample_rate=SAMPLE_RATE,
            num_samples=num_samples,
            fft_size=FFT_SIZE,
            hop_size=HOP_SIZE,
            num_mel_bins=_shape(model, "encoder/conv1/weight", 3)[1],
        ),
    )


def _shape(model: CTranslate2Model, name: str, num_dimensions: int) -> tuple[int, ...]:
    if name not in model.weights:
        raise SourceError(f"{model.path.name}: {name} is missing")
    shape = model.weights.shape(name)
    if len(shape) != num_dimensions:
        raise SourceError(f"{model.path.name}: {name} has the shape {list(shape)}")
    return shape


def _num_layers(model: CTranslate2Model, side: str) -> int:
    """The number of layers with weights. A gap in their numbers means missing weights."""
    matches = (re.match(rf"{side}/layer_(\d+)/", name) for name in model.weights)
    count = len({match[1] for match in matches if match})
    if count > MAX_LAYERS:
        raise SourceError(f"{model.path.name}: {count} layers, more than {MAX_LAYERS}")
    return count


def _weights(model: CTranslate2Model, config: ModelConfig) -> dict[str, Tensor]:
    num_tokens = model.weights.shape(ENCODER_POSITIONS)[0]
    weights = rename(
        _table(config),
        model.weights,
        copies={PROJECTION: "embedding.tokens.weight"},
        computed={ENCODER_POSITIONS: sinusoids(num_tokens, config.hidden_size)},
    )
    check_weights(config, weights)
    return weights


def _table(config: ModelConfig) -> list[Rename]:
    return [
        Rename("embedding.tokens.weight", (TOKENS,)),
        Rename("embedding.positions.weight", (DECODER_POSITIONS,)),
        *_linear("audio.first_convolution", "encoder/conv1", as_linear_map),
        *_linear("audio.second_convolution", "encoder/conv2", as_linear_map),
        *_stack("encoder", config.encoder),
        *_stack("decoder", config.decoder),
    ]


def _stack(side: str, stack: StackConfig | None) -> list[Rename]:
    layers = () if stack is None else stack.layers
    target, source = f"{side}.layers.{{n}}", f"{side}/layer_{{n}}"
    table = [
        *_linear(f"{target}.mixer.qkv", f"{source}/self_attention/linear_0"),
        *_linear(f"{target}.mixer.output", f"{source}/self_attention/linear_1"),
        *_norm(f"{target}.mixer_norm", f"{source}/self_attention/layer_norm"),
        *_linear(f"{target}.feed_forward.input", f"{source}/ffn/linear_0"),
        *_linear(f"{target}.feed_forward.output", f"{source}/ffn/linear_1"),
        *_norm(f"{target}.feed_forward_norm", f"{source}/ffn/layer_norm"),
    ]
    if side == "decoder":
        table += [
            *_linear(f"{target}.cross_attention.query", f"{source}/attention/linear_0"),
            *_linear(f"{target}.cross_attention.key_value", f"{source}/attention/linear_1"),
            *_linear(f"{target}.cross_attention.output", f"{source}/attention/linear_2"),
            *_norm(f"{target}.cross_attention_norm", f"{source}/attention/layer_norm"),
        ]
    return [*per_layer(table, len(layers)), *_norm(f"{side}.final_norm", f"{side}/layer_norm")]


def _linear(target: str, source: str, transform: Transform = torch.t) -> list[Rename]:
    return [
        Rename(f"{target}.weight", (f"{source}/weight",), transform),
        Rename(f"{target}.bias", (f"{source}/bias",)),
    ]


def _norm(target: str, source: str) -> list[Rename]:
    return [
        Rename(f"{target}.weight", (f"{source}/gamma",)),
        Rename(f"{target}.bias", (f"{source}/beta",)),
    ]
