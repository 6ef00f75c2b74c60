"""Phi-3.5-MoE (Abdin et al. 2024): Mixtral with layer norms, biases and SparseMixer."""

from msgspec import structs

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.mixtral import NAMES
from export.importers.rotary import Rotary, rope_parameters, rotary
from export.importers.support import MAX_EXPERTS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ExpertsConfig, NormConfig, NormKind


def import_phimoe(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``PhimoeForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "PhimoeForCausalLM")
    check_supported(config, hidden_act=("silu",), num_experts_per_tok=(2,))
    norm = NormConfig(kind=NormKind.LAYER, epsilon=config.number("rms_norm_eps", 1e-5))
    sizes = DecoderSizes.of(config, norm=norm)
    positions = _positions(config, sizes.head_size)
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=positions.config,
        window=config.optional_integer("sliding_window"),
    )
    experts = ExpertsConfig(
        count=config.positive("num_local_experts", 16, maximum=MAX_EXPERTS),
        active=2,
        normalized=False,
        sparse_mixer_noise=config.number("router_jitter_noise", 0.01),
    )
    layer = sizes.layer(attention, experts=experts)
    model = sizes.model(
        (layer,) * sizes.num_layers,
        positions.max_positions,
        head_bias=config.flag("lm_head_bias", False),
    )
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES))


def _positions(config: Fields, head_size: int) -> Rotary:
    """LongRoPE has a magnitude of its own, up to the original context."""
    positions = rotary(config, head_size, default_base=1_000_000.0)
    parameters = rope_parameters(config)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    named = Fields({"rope_type": kind}, parameters.origin)
    check_supported(named, rope_type=("default", "longrope", "su"))
    if kind == "default":
        return positions
    magnitude = parameters.number("short_mscale")
    return Rotary(structs.replace(positions.config, magnitude=magnitude), positions.max_positions)
