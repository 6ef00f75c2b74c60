"""Shared by the importers of BERTs with rotary positions: nomic-bert, GTE and Jina v3.

Post-norm layers without absolute positions. Checkpoints use the names of each family's original
code, which ``transformers`` writes too, or the names of ``transformers`` itself: :data:`NATIVE`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from export.importers.activations import activation
from export.importers.bert_tables import SEGMENTS, TOKENS, layer_norm, num_layers
from export.importers.encoders import Body
from export.importers.renaming import Rename, Transform, affine, linear, per_layer, stack_rows
from export.importers.rotary import rotary
from export.importers.support import divide_heads
from export.readers.fields import Fields
from model.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

_TARGET = "encoder.layers.{n}"


@dataclass(frozen=True, kw_only=True)
class RotaryBertNames:
    """A checkpoint's names for the parts of layer ``{n}``, and for the embeddings' norm.

    Attributes:
        qkv: queries, keys and values, or one weight with all rows.
        feed_forward_input: if gated, the gate and then the other half.
        input_rows: the order of their rows.
    """

    embedding_norm: str
    qkv: tuple[str, ...]
    attention_output: str
    attention_norm: str
    feed_forward_input: tuple[str, ...]
    input_rows: Transform = stack_rows
    feed_forward_output: str
    feed_forward_norm: str


_LAYER = "layers.{n}"
NATIVE = RotaryBertNames(
    embedding_norm="embeddings.LayerNorm",
    qkv=tuple(f"{_LAYER}.self_attn.{letter}_proj" for letter in "qkv"),
    attention_output=f"{_LAYER}.self_attn.o_proj",
    attention_norm=f"{_LAYER}.post_attention_layernorm",
    feed_forward_input=(f"{_LAYER}.mlp.gate_proj", f"{_LAYER}.mlp.up_proj"),
    feed_forward_output=f"{_LAYER}.mlp.down_proj",
    feed_forward_norm=f"{_LAYER}.post_mlp_layernorm",
)


@dataclass(frozen=True, kw_only=True)
class RotaryBertFamily:
    """The differences between families.

    Attributes:
        base: the prefix of the body's weights in classes with a head.
        names: those of the original code.
        native: those of ``transformers``.
        input_bias: whether the first map of a feed-forward has a bias; ``output_bias`` likewise.
        theta: the rotary base if config.json names none.
    """

    base: str
    names: RotaryBertNames
    native: RotaryBertNames = NATIVE
    gated: bool = True
    attention_bias: bool
    input_bias: bool
    output_bias: bool
    act: str
    epsilon: float
    theta: float
    num_segments: int


def rotary_body(config: Fields, weights: Mapping[str, Tensor], family: RotaryBertFamily) -> Body:
    """The body of a model of ``family`` with ``weights``.

    Raises:
        SourceError, UnsupportedError: see :mod:`export.errors`.
    """
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
    head_size = config.optional_integer("head_dim")
    head_size = head_size or divide_heads(config.origin, hidden_size, num_heads)
    positions = rotary(config, head_size, default_base=family.theta)
    norm = layer_norm(config, default=family.epsilon)
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_size=head_size,
            input_bias=family.attention_bias,
            output_bias=family.attention_bias,
            rotary=positions.config,
        ),
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("intermediate_size"),
            activation=activation(config, "hidden_act", family.act),
            gated=family.gated,
            bias=family.output_bias,
        ),
        norm=norm,
        norm_order=NormOrder.POST,
    )
    number = num_layers(config)
    num_segments = config.integer("type_vocab_size", family.num_segments)
    is_native = any(".self_attn." in name for name in weights)
    names = family.native if is_native else family.names
    return Body(
        base=family.base,
        hidden_size=hidden_size,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=positions.max_positions),
        embedding=EmbeddingConfig(norm=norm, num_segments=num_segments),
        encoder=StackConfig(layers=(layer,) * number),
        table=(
            TOKENS,
            *((SEGMENTS,) if num_segments else ()),
            *affine("embedding.norm", names.embedding_norm),
            *per_layer(_layer_table(names, family), number),
        ),
        ignored=("pooler.dense.weight", "pooler.dense.bias"),
    )


def _layer_table(names: RotaryBertNames, family: RotaryBertFamily) -> list[Rename]:
    inputs = linear(
        f"{_TARGET}.feed_forward.input",
        *names.feed_forward_input,
        bias=family.input_bias,
        rows=names.input_rows,
    )
    if family.output_bias and not family.input_bias:
        # In this project's models, both maps have biases, or neither.
        (weight,) = inputs
        inputs.append(
            Rename(f"{_TARGET}.feed_forward.input.bias", weight.sources, _zero_for_each_row)
        )
    bias = family.attention_bias
    return [
        *linear(f"{_TARGET}.mixer.qkv", *names.qkv, bias=bias),
        *linear(f"{_TARGET}.mixer.output", names.attention_output, bias=bias),
        *affine(f"{_TARGET}.mixer_norm", names.attention_norm),
        *inputs,
        *linear(
            f"{_TARGET}.feed_forward.output", names.feed_forward_output, bias=family.output_bias
        ),
        *affine(f"{_TARGET}.feed_forward_norm", names.feed_forward_norm),
    ]


def _zero_for_each_row(*weights: Tensor) -> Tensor:
    return stack_rows(*weights)[:, 0] * 0


def second_half_first(weight: Tensor) -> Tensor:
    """Swaps the halves of ``weight``'s rows, of which the second is the gate."""
    up, gate = weight.chunk(2)
    return stack_rows(gate, up)


def without_gate(names: RotaryBertNames, inner: str, output: str) -> RotaryBertNames:
    """``names`` with a feed-forward of two maps."""
    return replace(names, feed_forward_input=(inner,), feed_forward_output=output)
