"""T5Gemma (Google 2025): Gemma 2's layers as an encoder and as a decoder with cross-attention.

Each stack has its own token table. In the encoder, windows are on both sides of a token.
"""

from collections.abc import Iterator

from msgspec import structs

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.importers.activations import activation
from export.importers.gated_decoder import DecoderSizes
from export.importers.layer_types import SLIDING, layer_types
from export.importers.renaming import Rename, add_one, linear
from export.importers.rotary import rotary
from export.importers.seq2seq import seq2seq_checkpoint
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.bundle import Task
from model.config import (
    AttentionConfig,
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

ARCHITECTURE = "T5GemmaForConditionalGeneration"
_OUTPUT = "lm_head.out_proj"


def import_t5gemma(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``T5GemmaForConditionalGeneration`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = next(iter(config.texts("architectures")), ARCHITECTURE)
    lookup({ARCHITECTURE: None}, architecture, f"{config.origin}: architectures")
    stacks = {side: config.fields(side) for side in ("encoder", "decoder")}
    sizes = {
        side: DecoderSizes.of(stack, head_size=256, tied=True) for side, stack in stacks.items()
    }
    source, target = sizes.values()
    if source.hidden_size != target.hidden_size:
        raise UnsupportedError(
            f"{config.origin}: an encoder of the size {source.hidden_size} and a decoder of "
            f"{target.hidden_size} are not supported; supported: the same size"
        )
    if source.vocabulary_size != target.vocabulary_size:
        raise SourceError(f"{config.origin}: encoder and decoder have other vocabularies")
    tied = config.flag("tie_word_embeddings", True)
    longest = min(rotary(stack, source.head_size).max_positions for stack in stacks.values())
    model = ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=target.vocabulary_size,
        hidden_size=target.hidden_size,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=longest),
        embedding=EmbeddingConfig(scale=target.hidden_size**0.5, separate_tokens=True),
        encoder=_stack(stacks["encoder"], source, is_encoder=True),
        decoder=_stack(stacks["decoder"], target, is_encoder=False),
        head=HeadConfig(
            kind=HeadKind.LANGUAGE_MODEL,
            tied=tied,
            soft_cap=stacks["decoder"].optional_number("final_logit_softcapping", absent=30.0),
        ),
    )
    table = [
        Rename("embedding.tokens.weight", ("model.encoder.embed_tokens.weight",)),
        Rename("target_tokens.tokens.weight", ("model.decoder.embed_tokens.weight",)),
        *_stack_table("encoder", model.encoder),
        *_stack_table("decoder", model.decoder),
    ]
    if not tied:
        table += linear("head.output", _OUTPUT, bias=False)
    copies = {f"{_OUTPUT}.weight": "target_tokens.tokens.weight"} if tied else {}
    tasks = (Task.GENERATE, Task.TRANSLATE)
    return seq2seq_checkpoint(folder, model, architecture, table, tasks, copies=copies)


def _stack(config: Fields, sizes: DecoderSizes, *, is_encoder: bool) -> StackConfig:
    bias = config.flag("attention_bias", False)
    plain = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        scale=config.positive("query_pre_attn_scalar", 256) ** -0.5,
        soft_cap=config.optional_number("attn_logit_softcapping", absent=50.0),
    )
    rotated = structs.replace(plain, rotary=rotary(config, sizes.head_size).config)
    # A window on both sides is one token wider in transformers.
    window = config.positive("sliding_window", 4096) + is_encoder

    def layer(type_: str) -> LayerConfig:
        layer = sizes.layer(
            structs.replace(rotated, window=window) if type_ == SLIDING else rotated,
            activation=activation(config, "hidden_activation", "gelu_pytorch_tanh"),
            norm_order=NormOrder.SANDWICH,
        )
        return structs.replace(layer, cross_attention=None if is_encoder else plain)

    types = layer_types(config, sizes.num_layers, lambda index: index % 2 == 0)
    return StackConfig(layers=tuple(map(layer, types)), final_norm=sizes.norm)


def _stack_table(side: str, stack: StackConfig | None) -> Iterator[Rename]:
    """The weights of one stack, which ``side`` names."""
    source, target = f"model.{side}.layers.{{n}}", f"{side}.layers.{{n}}"
    for index, layer in enumerate(() if stack is None else stack.layers):
        parts = [("mixer", "self_attn"), ("feed_forward", "feedforward")]
        entries: list[Rename] = []
        if layer.attention is not None:
            names = tuple(f"{source}.self_attn.{name}_proj" for name in "qkv")
            entries += linear(f"{target}.mixer.qkv", *names, bias=layer.attention.input_bias)
            entries += _output(f"{target}.mixer", f"{source}.self_attn", layer.attention)
        if layer.cross_attention is not None:
            parts.append(("cross_attention", "cross_attn"))
            entries += _cross_table(target, f"{source}.cross_attn", layer.cross_attention)
        gates = (f"{source}.mlp.gate_proj", f"{source}.mlp.up_proj")
        entries += linear(f"{target}.feed_forward.input", *gates, bias=False)
        entries += linear(f"{target}.feed_forward.output", f"{source}.mlp.down_proj", bias=False)
        for part, name in parts:
            for ours, theirs in (("before", "pre"), ("after", "post")):
                norm = f"{source}.{theirs}_{name}_layernorm.weight"
                entries.append(Rename(f"{target}.{part}_norm.{ours}.weight", (norm,), add_one))
        yield from (entry.at(index) for entry in entries)
    yield Rename(f"{side}.final_norm.weight", (f"model.{side}.norm.weight",), add_one)


def _cross_table(target: str, source: str, attention: AttentionConfig) -> list[Rename]:
    name, bias = f"{target}.cross_attention", attention.input_bias
    return [
        *linear(f"{name}.query", f"{source}.q_proj", bias=bias),
        *linear(f"{name}.key_value", f"{source}.k_proj", f"{source}.v_proj", bias=bias),
        *_output(name, source, attention),
    ]


def _output(target: str, source: str, attention: AttentionConfig) -> list[Rename]:
    return linear(f"{target}.output", f"{source}.o_proj", bias=attention.output_bias)
