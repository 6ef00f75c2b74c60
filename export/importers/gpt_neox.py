"""GPT-NeoX (Black et al. 2022) and Pythia, as ``transformers`` saves them.

Parallel attention and feed-forward; rotary positions in a quarter of each head; queries, keys and
values packed head by head.
"""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.renaming import (
    Rename,
    Transform,
    affine,
    linear,
    per_layer,
    rows_by_kind,
    select_rows,
)
from export.importers.rotary import Rotary, rotary, rotary_dimensions_first
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import (
    AttentionConfig,
    Branches,
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

_TARGET, _SOURCE = "decoder.layers.{n}", "gpt_neox.layers.{n}"
OUTPUTS = ("lm_head", "embed_out")  # the second is used before transformers 5
BUFFERS = ("attention.bias", "attention.masked_bias")


def import_gpt_neox(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GPTNeoXForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "GPTNeoXForCausalLM")
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
    head_size = divide_heads(config.origin, hidden_size, num_heads)
    positions = rotary(
        config,
        head_size,
        default_base=config.number("rotary_emb_base", 10_000.0),
        default_fraction=config.number("rotary_pct", 0.25),
    )
    num_layers = config.positive("num_hidden_layers", maximum=MAX_LAYERS)
    layer = _layer(config, hidden_size, num_heads, positions)
    model = ModelConfig(
        kind=Kind.DECODER,
        vocabulary_size=config.positive("vocab_size"),
        hidden_size=hidden_size,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=positions.max_positions),
        embedding=EmbeddingConfig(),
        decoder=StackConfig(layers=(layer,) * num_layers, final_norm=layer.norm),
        head=HeadConfig(
            kind=HeadKind.LANGUAGE_MODEL, tied=config.flag("tie_word_embeddings", False)
        ),
    )
    rows = rows_by_kind(num_heads, head_size, rotary_dimensions_first(head_size, positions.config))
    table = [
        Rename("embedding.tokens.weight", ("gpt_neox.embed_in.weight",)),
        *per_layer(_layer_table(select_rows(rows), config), num_layers),
        *affine("decoder.final_norm", "gpt_neox.final_layer_norm"),
    ]
    output = next((name for name in OUTPUTS if f"{name}.weight" in folder.weights), OUTPUTS[0])
    if not model.head.tied:
        table += linear("head.output", output, bias=False)
    ignored = [f"gpt_neox.layers.{n}.{name}" for n in range(num_layers) for name in BUFFERS]
    return causal_checkpoint(
        folder, model, architecture, table, ignored=ignored, output=f"{output}.weight"
    )


def _layer_table(rows: Transform, config: Fields) -> list[Rename]:
    bias = config.flag("attention_bias", True)
    attention, feed_forward = f"{_SOURCE}.attention", f"{_SOURCE}.mlp"
    return [
        *affine(f"{_TARGET}.mixer_norm", f"{_SOURCE}.input_layernorm"),
        *linear(f"{_TARGET}.mixer.qkv", f"{attention}.query_key_value", bias=bias, rows=rows),
        *linear(f"{_TARGET}.mixer.output", f"{attention}.dense", bias=bias),
        *affine(f"{_TARGET}.feed_forward_norm", f"{_SOURCE}.post_attention_layernorm"),
        *linear(f"{_TARGET}.feed_forward.input", f"{feed_forward}.dense_h_to_4h", bias=True),
        *linear(f"{_TARGET}.feed_forward.output", f"{feed_forward}.dense_4h_to_h", bias=True),
    ]


def _layer(config: Fields, hidden_size: int, num_heads: int, positions: Rotary) -> LayerConfig:
    bias = config.flag("attention_bias", True)
    parallel = config.flag("use_parallel_residual", True)
    return LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_size=hidden_size // num_heads,
            input_bias=bias,
            output_bias=bias,
            rotary=positions.config,
        ),
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("intermediate_size"),
            activation=activation(config, "hidden_act", "gelu"),
            gated=False,
            bias=True,
        ),
        norm=NormConfig(kind=NormKind.LAYER, epsilon=config.number("layer_norm_eps", 1e-5)),
        norm_order=NormOrder.PRE,
        branches=Branches.PARALLEL if parallel else Branches.SEQUENTIAL,
    )
