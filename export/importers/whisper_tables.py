"""Whisper (Radford et al. 2022): layers, weights with the names of ``transformers``, tokens."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from export.checkpoint import check_weights
from export.errors import SourceError
from export.importers.causal import OUTPUT_MATRIX
from export.importers.renaming import Rename, affine, linear, rename
from export.importers.support import divide_heads
from model.audio_config import AudioConfig, AudioSpec, TranscriptionTokens
from model.config import (
    Activation,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind
from model.positions import sinusoids

NORM = NormConfig(kind=NormKind.LAYER, epsilon=1e-5)
TOKENS = "model.decoder.embed_tokens.weight"
ENCODER_POSITIONS = "model.encoder.embed_positions.weight"
START, NO_TIMESTAMPS = "<|startoftranscript|>", "<|notimestamps|>"
NUM_TIMESTAMPS = 1501  # at most: from 0 to 30 seconds
# Multilingual models have a vocabulary with one more token; English ones do not use the language
# tokens of their tokenizer.
NUM_ENGLISH_TOKENS = 51864
LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")  # of newer and of older tokenizers


@dataclass(frozen=True, kw_only=True)
class WhisperSizes:
    """The sizes of a model; ``encoder_inner_size`` and ``decoder_inner_size``: of feed-forwards."""

    vocabulary_size: int
    hidden_size: int
    encoder_layers: int
    encoder_heads: int
    encoder_inner_size: int
    decoder_layers: int
    decoder_heads: int
    decoder_inner_size: int
    max_target_tokens: int
    activation: Activation = Activation.GELU
    audio: AudioConfig


def model_config(sizes: WhisperSizes, origin: str) -> ModelConfig:
    """The configuration with these sizes. ``origin`` names their file in errors.

    Raises:
        SourceError: the sizes are inconsistent.
    """
    decoder = _layer(sizes, sizes.decoder_heads, sizes.decoder_inner_size, origin, cross=True)
    return ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=sizes.vocabulary_size,
        hidden_size=sizes.hidden_size,
        position=PositionConfig(kind=PositionKind.LEARNED, max_positions=sizes.max_target_tokens),
        embedding=EmbeddingConfig(),
        encoder=encoder_stack(sizes, origin),
        decoder=StackConfig(layers=(decoder,) * sizes.decoder_layers, final_norm=NORM),
        audio=sizes.audio,
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True),
    )


def encoder_stack(sizes: WhisperSizes, origin: str) -> StackConfig:
    """The encoder with these sizes; ``origin`` and errors as for :func:`model_config`."""
    layer = _layer(sizes, sizes.encoder_heads, sizes.encoder_inner_size, origin)
    return StackConfig(layers=(layer,) * sizes.encoder_layers, final_norm=NORM)


def model_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's weights, from weights with the names of ``WhisperForConditionalGeneration``.

    Raises:
        WeightsError: some are missing, unexpected or damaged.
    """
    computed = {}
    if config.audio is not None:
        computed[ENCODER_POSITIONS] = sinusoids(config.audio.num_tokens, config.hidden_size)
    renamed = rename(
        _table(config),
        weights,
        copies={OUTPUT_MATRIX: "embedding.tokens.weight"},
        computed=computed,
    )
    check_weights(config, renamed)
    return renamed


def audio_spec(audio: AudioConfig) -> AudioSpec:
    """The input format of a model with the configuration ``audio``."""
    return AudioSpec(
        sample_rate=audio.sample_rate, num_samples=audio.num_samples, num_tokens=audio.num_tokens
    )


def language_tokens(tokenizer: Tokenizer, vocabulary_size: int) -> dict[str, int]:
    """Language tokens by name, in the order of their ids; empty for English models."""
    if vocabulary_size == NUM_ENGLISH_TOKENS:
        return {}
    start, last = tokenizer.token_to_id(START), tokenizer.token_to_id("<|translate|>")
    added = tokenizer.get_added_tokens_decoder()
    matches = {id_: LANGUAGE.fullmatch(token.content) for id_, token in sorted(added.items())}
    return {
        match[1]: id_
        for id_, match in matches.items()
        if match and start is not None and last is not None and start < id_ < last
    }


def transcription_tokens(
    tokenizer: Tokenizer,
    vocabulary_size: int,
    first_suppressed: tuple[int, ...],
    alignment_heads: tuple[tuple[int, int], ...] = (),
) -> TranscriptionTokens:
    """The special tokens in ``tokenizer``. Timestamps are the last tokens of the vocabulary.

    Raises:
        SourceError: the tokenizer lacks the tokens that every model has.
    """
    no_timestamps = tokenizer.token_to_id(NO_TIMESTAMPS)
    if no_timestamps is None or no_timestamps + 1 >= vocabulary_size:
        raise SourceError(f"the tokenizer has no token {NO_TIMESTAMPS} before timestamps")
    is_multilingual = vocabulary_size != NUM_ENGLISH_TOKENS
    no_speech = (tokenizer.token_to_id(name) for name in NO_SPEECH)

    def task(name: str) -> int | None:
        found: int | None = tokenizer.token_to_id(name) if is_multilingual else None
        return found

    return TranscriptionTokens(
        first_timestamp=no_timestamps + 1,
        num_timestamps=min(NUM_TIMESTAMPS, vocabulary_size - no_timestamps - 1),
        no_timestamps=no_timestamps,
        transcribe=task("<|transcribe|>"),
        translate=task("<|translate|>"),
        previous=tokenizer.token_to_id("<|startofprev|>"),
        no_speech=next((id_ for id_ in no_speech if id_ is not None), None),
        first_suppressed=first_suppressed,
        alignment_heads=alignment_heads,
    )


def _layer(
    sizes: WhisperSizes, num_heads: int, inner_size: int, origin: str, *, cross: bool = False
) -> LayerConfig:
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=divide_heads(origin, sizes.hidden_size, num_heads),
        input_bias=True,
        output_bias=True,
    )
    return LayerConfig(
        attention=attention,
        cross_attention=attention if cross else None,
        feed_forward=FeedForwardConfig(
            inner_size=inner_size, activation=sizes.activation, gated=False, bias=True
        ),
        norm=NORM,
        norm_order=NormOrder.PRE,
    )


def _table(config: ModelConfig) -> list[Rename]:
    table = [
        Rename("embedding.tokens.weight", (TOKENS,)),
        Rename("embedding.positions.weight", ("model.decoder.embed_positions.weight",)),
    ]
    table += convolution_table("audio", "model.encoder.")
    for side, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        table += stack_table(side, f"model.{side}.", () if stack is None else stack.layers)
    return table


def convolution_table(target: str, prefix: str) -> list[Rename]:
    """The weights of both convolutions of the module ``target``; ``prefix``: of the sources."""
    table: list[Rename] = []
    for number, order in ((1, "first"), (2, "second")):
        name, source = f"{target}.{order}_convolution", f"{prefix}conv{number}"
        table.append(Rename(f"{name}.weight", (f"{source}.weight",), as_linear_map))
        table.append(Rename(f"{name}.bias", (f"{source}.bias",)))
    return table


def stack_table(side: str, prefix: str, layers: Sequence[LayerConfig]) -> list[Rename]:
    """The weights of the layers of ``side``, and of the last norm; ``prefix``: of the sources."""
    table: list[Rename] = []
    for index, layer in enumerate(layers):
        table += [entry.at(index) for entry in _layer_table(side, prefix, layer)]
    return table + affine(f"{side}.final_norm", f"{prefix}layer_norm")


def _layer_table(side: str, prefix: str, layer: LayerConfig) -> list[Rename]:
    target, source = f"{side}.layers.{{n}}", f"{prefix}layers.{{n}}"
    own, cross = f"{source}.self_attn", f"{source}.encoder_attn"
    table = [
        *_packed(f"{target}.mixer.qkv", f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj"),
        *linear(f"{target}.mixer.output", f"{own}.out_proj", bias=True),
        *affine(f"{target}.mixer_norm", f"{source}.self_attn_layer_norm"),
        *linear(f"{target}.feed_forward.input", f"{source}.fc1", bias=True),
        *linear(f"{target}.feed_forward.output", f"{source}.fc2", bias=True),
        *affine(f"{target}.feed_forward_norm", f"{source}.final_layer_norm"),
    ]
    if layer.cross_attention is not None:
        name = f"{target}.cross_attention"
        table += [
            *linear(f"{name}.query", f"{cross}.q_proj", bias=True),
            *_packed(f"{name}.key_value", f"{cross}.k_proj", f"{cross}.v_proj"),
            *linear(f"{name}.output", f"{cross}.out_proj", bias=True),
            *affine(f"{name}_norm", f"{source}.encoder_attn_layer_norm"),
        ]
    return table


def _packed(target: str, *sources: str) -> list[Rename]:
    """Packed linear maps, of which all but the keys' have a bias; the keys' becomes zeros."""
    *queries, _, value = (f"{source}.bias" for source in sources)

    def with_zeros(*biases: Tensor) -> Tensor:
        return torch.cat([*biases[:-1], torch.zeros_like(biases[-1]), biases[-1]])

    weight, _ = linear(target, *sources, bias=True)
    return [weight, Rename(f"{target}.bias", (*queries, value), with_zeros)]


def as_linear_map(weight: Tensor) -> Tensor:
    """A convolution's ``[outputs, inputs, 3]`` to ``[3 * inputs, outputs]``."""
    return weight.permute(2, 1, 0).flatten(0, 1)


def suppressed(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The ids in the list ``name``; negative numbers stand for none."""
    value = fields.get(name)
    ids = value if isinstance(value, list) else []
    return tuple(sorted({id_ for id_ in ids if type(id_) is int and id_ >= 0}))


def alignment_heads(fields: Mapping[str, Any], sizes: WhisperSizes) -> tuple[tuple[int, int], ...]:
    """The pairs of layer and head in ``alignment_heads``; empty if the model does not have them."""
    value = fields.get("alignment_heads")
    pairs = value if isinstance(value, list) else []
    layers, heads = range(sizes.decoder_layers), range(sizes.decoder_heads)
    found = [
        (pair[0], pair[1])
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and pair[0] in layers and pair[1] in heads
    ]
    return tuple(found) if len(found) == len(pairs) else ()
