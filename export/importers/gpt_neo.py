"""GPT-Neo (Black et al. 2021): GPT-2 with a window in some layers, whose scores are not scaled."""

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.renaming import numbered
from export.importers.support import MAX_LAYERS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.position_config import PositionKind

_SOURCE = "transformer.h.{n}"
NAMES: Names = {
    "embedding.tokens": ("transformer.wte",),
    "embedding.positions": ("transformer.wpe",),
    "decoder.final_norm": ("transformer.ln_f",),
    "head.output": ("lm_head",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.ln_1",),
    f"{TARGET}.mixer.qkv": tuple(f"{_SOURCE}.attn.attention.{name}_proj" for name in "qkv"),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.attn.attention.out_proj",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.ln_2",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.c_fc",),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.mlp.c_proj",),
}
FIELDS = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}
BUFFERS = (f"{_SOURCE}.attn.attention.bias", f"{_SOURCE}.attn.attention.masked_bias")
GLOBAL, LOCAL = "global", "local"


def import_gpt_neo(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GPTNeoForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_names(**FIELDS)
    architecture = architecture_of(config, "GPTNeoForCausalLM")
    inner_size = 4 * config.positive("hidden_size")
    norm = layer_norm(config, "layer_norm_epsilon")
    sizes = DecoderSizes.of(config, tied=True, inner_size=inner_size, norm=norm)
    windows = {GLOBAL: None, LOCAL: config.positive("window_size", 256)}
    layers = tuple(
        sizes.layer(
            sizes.attention(input_bias=False, output_bias=True, scale=1.0, window=windows[kind]),
            activation=activation(config, "activation_function", "gelu_new"),
            gated=False,
            bias=True,
        )
        for kind in _kinds(config, sizes.num_layers)
    )
    max_positions = config.positive("max_position_embeddings", 2048)
    model = sizes.model(layers, max_positions, positions=PositionKind.LEARNED)
    ignored = numbered(BUFFERS, sizes.num_layers)
    return causal_checkpoint(
        folder, model, architecture, gated_table(model, NAMES), ignored=ignored
    )


def _kinds(config: Fields, num_layers: int) -> list[str]:
    """The kind of each layer, from runs such as ``[[["global", "local"], 12]]``."""
    runs = config.get("attention_types")
    kinds: list[str] = []
    for run in runs if isinstance(runs, list) else [[[GLOBAL, LOCAL], num_layers // 2]]:
        match run:
            case [list(names), int(times)] if times <= MAX_LAYERS:
                kinds += names * times if len(kinds) <= MAX_LAYERS else []
            case _:
                raise SourceError(f"{config.origin}: attention_types has {run!r}")
    if len(kinds) != num_layers or not {GLOBAL, LOCAL}.issuperset(map(str, kinds)):
        raise SourceError(
            f"{config.origin}: attention_types are not {num_layers} of {GLOBAL!r} and {LOCAL!r}"
        )
    return kinds
