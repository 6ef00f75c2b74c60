"""T5 (Raffel et al. 2020), T5 v1.1, Flan-T5, mT5 and umT5: text to text.

umT5 (Chung et al. 2023) has a relative bias for each layer, the others one for each stack.
"""

import msgspec
import torch

from export.checkpoint import Checkpoint
from export.importers.causal import OUTPUT_MATRIX
from export.importers.renaming import Rename, linear
from export.importers.seq2seq import seq2seq_checkpoint, token_table
from export.importers.support import MAX_LAYERS
from export.importers.t5_encoder import HEADS, import_t5_encoder
from export.importers.t5_tables import encoder_stack, positions, stack_table
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.bundle import Task
from model.config import (
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    Kind,
    ModelConfig,
    StackConfig,
)
from model.mixers import required

# By class: whether it scales the input of a tied output matrix.
ARCHITECTURES = {
    "T5ForConditionalGeneration": True,
    "MT5ForConditionalGeneration": False,
    "UMT5ForConditionalGeneration": True,
}
# Relative positions have no limit; the models were trained on texts of this length.
MAX_POSITIONS = 512
TOKENS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# The first checkpoints have this bias; no version uses it.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def import_t5(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``T5ForConditionalGeneration`` in ``folder``, or its encoder, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = next(iter(config.texts("architectures")), "T5ForConditionalGeneration")
    if architecture in HEADS:
        return import_t5_encoder(folder)
    supported = {**ARCHITECTURES, **dict.fromkeys(HEADS, False)}
    may_scale = lookup(supported, architecture, f"{config.origin}: architectures")
    tokens = token_table(folder.weights, TOKENS)
    tied = _is_tied(folder, tokens)
    model = _config(config, tied=tied)
    # If the configuration ties the output matrix, the model divides its input by the square root
    # of the hidden size (code of section 3.1.1). Here the final norm's weight includes that.
    scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
    scale = model.hidden_size**-0.5 if scaled and may_scale else 1.0
    table = [
        Rename("embedding.tokens.weight", (tokens,)),
        *stack_table("encoder", model.encoder),
        *stack_table("decoder", model.decoder),
        Rename("encoder.final_norm.weight", ("encoder.final_layer_norm.weight",)),
        Rename(
            "decoder.final_norm.weight",
            ("decoder.final_layer_norm.weight",),
            lambda weight: weight * scale,
        ),
    ]
    copies = dict.fromkeys({*TOKENS} - {tokens}, "embedding.tokens.weight")
    if tied:
        copies[OUTPUT_MATRIX] = "embedding.tokens.weight"
    else:
        table += linear("head.output", OUTPUT_MATRIX.removesuffix(".weight"), bias=False)
    tasks = (Task.GENERATE, Task.TRANSLATE)
    return seq2seq_checkpoint(
        folder, model, architecture, table, tasks, ignored=(UNUSED,), copies=copies
    )


def _is_tied(folder: HuggingFaceFolder, tokens: str) -> bool:
    """Whether the output matrix equals the token table; configurations are not reliable."""
    weights = folder.weights
    if OUTPUT_MATRIX not in weights or tokens not in weights:
        return True
    return torch.equal(weights[OUTPUT_MATRIX], weights[tokens])


def _config(config: Fields, *, tied: bool) -> ModelConfig:
    norm = NormConfig(kind=NormKind.RMS, epsilon=config.number("layer_norm_epsilon", 1e-6))
    attention = AttentionConfig(
        num_heads=config.positive("num_heads"),
        num_kv_heads=config.positive("num_heads"),
        head_size=config.positive("d_kv"),
        input_bias=False,
        output_bias=False,
        scale=1.0,
        bias=_bias(config),
    )
    encoder = LayerConfig(
        attention=attention, feed_forward=_feed_forward(config), norm=norm, norm_order=NormOrder.PRE
    )
    cross = msgspec.structs.replace(attention, bias=None)
    decoder = msgspec.structs.replace(encoder, cross_attention=cross)
    is_umt5 = config.text("model_type", "t5") == "umt5"

    def layers(layer: LayerConfig, number: int) -> tuple[LayerConfig, ...]:
        return tuple(_in_group(layer, index if is_umt5 else 0) for index in range(number))

    num_layers = config.positive("num_layers", maximum=MAX_LAYERS)
    num_decoder_layers = config.positive("num_decoder_layers", num_layers, maximum=MAX_LAYERS)
    return ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=config.positive("vocab_size"),
        hidden_size=config.positive("d_model"),
        position=positions(config),
        embedding=EmbeddingConfig(),
        encoder=StackConfig(layers=layers(encoder, num_layers), final_norm=norm),
        decoder=StackConfig(layers=layers(decoder, num_decoder_layers), final_norm=norm),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=tied),
    )


def _in_group(layer: LayerConfig, group: int) -> LayerConfig:
    """``layer`` with the bias of ``group``."""
    attention = required(layer.attention)
    bias = attention.bias and msgspec.structs.replace(attention.bias, group=group)
    return msgspec.structs.replace(layer, attention=msgspec.structs.replace(attention, bias=bias))


def _bias(config: Fields) -> RelativeBiasConfig:
    num_buckets = config.positive("relative_attention_num_buckets", 32)
    max_distance = config.positive("relative_attention_max_distance", 128)
    if num_buckets % 2 or num_buckets < 4 or max_distance <= num_buckets // 2:
        raise UnsupportedError(
            f"{config.origin}: relative_attention_num_buckets {num_buckets} with "
            f"relative_attention_max_distance {max_distance} is not supported; supported: an even "
            "number of 4 or more, and a distance of more than half of it"
        )
    return RelativeBiasConfig(
        kind=RelativeBiasKind.BUCKETS, num_buckets=num_buckets, max_distance=max_distance
    )


def _feed_forward(config: Fields) -> FeedForwardConfig:
    """From ``feed_forward_proj``: an activation, with the prefix ``gated-`` if it is gated.

    ``dense_act_fn`` and ``is_gated_act``, which transformers saves too, go before it.
    """
    is_t5 = config.text("model_type", "t5") == "t5"
    name = config.text("feed_forward_proj", "relu" if is_t5 else "gated-gelu")
    field, activation = "feed_forward_proj", name.removeprefix("gated-")
    if name == "gated-gelu":  # in T5, the tanh approximation
        activation = "gelu_new"
    if config.get("dense_act_fn") is not None:
        field, activation = "dense_act_fn", config.text("dense_act_fn")
    return FeedForwardConfig(
        inner_size=config.positive("d_ff"),
        activation=lookup(ACTIVATIONS, activation, f"{config.origin}: {field}"),
        gated=config.flag("is_gated_act", name.startswith("gated-")),
        bias=False,
    )


def _stack_table(side: str, stack: StackConfig | None) -> list[Rename]:
    """Every weight of a stack but its final norm."""
    if stack is None:
        return []
    layer = stack.layers[0]
    target, source = f"{side}.layers.{{n}}", f"{side}.block.{{n}}.layer"
    last = 1 if layer.cross_attention is None else 2
    inner = ("wi_0", "wi_1") if required(layer.feed_forward).gated else ("wi",)
    dense, attention = f"{source}.{last}.DenseReluDense", f"{source}.0.SelfAttention"
    table = [
        *linear(f"{target}.mixer.qkv", *(f"{attention}.{letter}" for letter in "qkv"), bias=False),
        *linear(f"{target}.mixer.output", f"{attention}.o", bias=False),
        Rename(f"{target}.mixer_norm.weight", (f"{source}.0.layer_norm.weight",)),
        *linear(f"{target}.feed_forward.input", *(f"{dense}.{x}" for x in inner), bias=False),
        *linear(f"{target}.feed_forward.output", f"{dense}.wo", bias=False),
        Rename(f"{target}.feed_forward_norm.weight", (f"{source}.{last}.layer_norm.weight",)),
    ]
    if layer.cross_attention is not None:
        name, cross = f"{target}.cross_attention", f"{source}.1.EncDecAttention"
        table += [
            *linear(f"{name}.query", f"{cross}.q", bias=False),
            *linear(f"{name}.key_value", f"{cross}.k", f"{cross}.v", bias=False),
            *linear(f"{name}.output", f"{cross}.o", bias=False),
            Rename(f"{name}_norm.weight", (f"{source}.1.layer_norm.weight",)),
        ]
    bias = Rename(
        f"{side}.positions.biases.{{n}}.weight",
        (f"{source}.0.SelfAttention.relative_attention_bias.weight",),
    )
    num_biases = len({required(layer.attention).bias for layer in stack.layers})
    return [*per_layer(table, len(stack.layers)), *per_layer([bias], num_biases)]
