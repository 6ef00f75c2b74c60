"""Families that differ from Llama in defaults, biases, norms or the order of rotated dimensions."""

from collections.abc import Callable
from dataclasses import dataclass

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.layer_types import SLIDING, layer_types
from export.importers.norms import layer_norm
from export.importers.renaming import stack_rows
from export.importers.rotary import rotary, rotary_rows
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder

UNGATED: Names = {
    **HUGGING_FACE,
    f"{TARGET}.feed_forward.input": ("model.layers.{n}.mlp.up_proj",),
}


@dataclass(frozen=True, kw_only=True)
class Biases:
    """Which matrices have biases."""

    input: bool = False
    output: bool = False
    feed_forward: bool = False


@dataclass(frozen=True, kw_only=True)
class LlamaVariant:
    """How a family differs from Llama.

    Attributes:
        base, epsilon, head_size, tied, activation: defaults of its configuration.
        interleaved: whether rotary positions rotate neighbouring dimensions.
        slides: whether layers may have windows.
        has_layer_norm: whether norms are layer norms, whose epsilon is ``layer_norm_eps``.
    """

    architecture: str
    biases: Callable[[Fields], Biases]
    base: float = 10_000.0
    epsilon: float = 1e-6
    head_size: int | None = None
    tied: bool = False
    activation: str = "silu"
    gated: bool = True
    interleaved: bool = False
    slides: bool = False
    has_layer_norm: bool = False


def _llama_biases(config: Fields) -> Biases:
    bias = config.flag("attention_bias", False)
    return Biases(input=bias, output=bias, feed_forward=config.flag("mlp_bias", False))


def _helium_biases(config: Fields) -> Biases:
    return Biases(
        input=config.flag("attention_bias", False), feed_forward=config.flag("mlp_bias", False)
    )


def _ernie_biases(config: Fields) -> Biases:
    bias = config.flag("use_bias", False)
    return Biases(input=bias, output=bias, feed_forward=bias)


def _jais2_biases(config: Fields) -> Biases:
    bias = config.flag("attention_bias", True)
    return Biases(input=bias, output=bias, feed_forward=config.flag("mlp_bias", True))


def _seed_oss_biases(config: Fields) -> Biases:
    return Biases(
        input=config.flag("attention_bias", True),
        output=config.flag("attention_out_bias", False),
        feed_forward=config.flag("mlp_bias", False),
    )


ARCEE = LlamaVariant(  # AFM, Arcee 2025
    architecture="ArceeForCausalLM",
    biases=_llama_biases,
    epsilon=1e-5,
    activation="relu2",
    gated=False,
)
ERNIE_4_5 = LlamaVariant(  # Baidu 2025
    architecture="Ernie4_5ForCausalLM",
    biases=_ernie_biases,
    base=500_000.0,
    epsilon=1e-5,
    head_size=128,
    tied=True,
    interleaved=True,
)
HELIUM = LlamaVariant(  # Kyutai 2025
    architecture="HeliumForCausalLM",
    biases=_helium_biases,
    base=100_000.0,
    epsilon=1e-8,
    head_size=128,
    interleaved=True,
)
JAIS2 = LlamaVariant(  # MBZUAI, Inception and Cerebras 2025
    architecture="Jais2ForCausalLM",
    biases=_jais2_biases,
    activation="relu2",
    gated=False,
    has_layer_norm=True,
)
MINISTRAL = LlamaVariant(  # Mistral AI 2024
    architecture="MinistralForCausalLM", biases=lambda _config: Biases(), slides=True
)
SEED_OSS = LlamaVariant(  # ByteDance 2025
    architecture="SeedOssForCausalLM", biases=_seed_oss_biases, head_size=128
)


def import_arcee(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``ArceeForCausalLM`` in ``folder``; see :func:`import_llama_like`."""
    return import_llama_like(folder, ARCEE)


def import_ernie4_5(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Ernie4_5ForCausalLM`` in ``folder``; see :func:`import_llama_like`."""
    return import_llama_like(folder, ERNIE_4_5)


def import_helium(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``HeliumForCausalLM`` in ``folder``; see :func:`import_llama_like`."""
    return import_llama_like(folder, HELIUM)


def import_jais2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Jais2ForCausalLM`` in ``folder``; see :func:`import_llama_like`."""
    return import_llama_like(folder, JAIS2)


def import_ministral(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MinistralForCausalLM`` in ``folder``; see :func:`import_llama_like`."""
    return import_llama_like(folder, MINISTRAL)


def import_seed_oss(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``SeedOssForCausalLM`` in ``folder``; see :func:`import_llama_like`."""
    return import_llama_like(folder, SEED_OSS)


def import_llama_like(folder: HuggingFaceFolder, variant: LlamaVariant) -> Checkpoint:
    """The model of ``variant`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, variant.architecture)
    sizes = DecoderSizes.of(
        config,
        epsilon=variant.epsilon,
        tied=variant.tied,
        head_size=variant.head_size,
        norm=layer_norm(config) if variant.has_layer_norm else None,
    )
    positions = rotary(config, sizes.head_size, default_base=variant.base)
    biases = variant.biases(config)
    window = config.optional_integer("sliding_window", absent=4096) if variant.slides else None
    attentions = {
        size: sizes.attention(
            input_bias=biases.input,
            output_bias=biases.output,
            rotary=positions.config,
            window=size,
        )
        for size in (None, window)
    }
    kind = activation(config, "hidden_act", variant.activation)
    types = layer_types(config, sizes.num_layers, lambda _index: window is not None)
    layers = tuple(
        sizes.layer(
            attentions[window if type_ == SLIDING else None],
            activation=kind,
            gated=variant.gated,
            bias=biases.feed_forward,
        )
        for type_ in types
    )
    model = sizes.model(layers, positions.max_positions)
    table = gated_table(
        model,
        HUGGING_FACE if variant.gated else UNGATED,
        qkv=rotary_rows(attentions[None], interleaved=True) if variant.interleaved else stack_rows,
    )
    return causal_checkpoint(folder, model, architecture, table)
