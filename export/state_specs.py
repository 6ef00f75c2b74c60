"""The states of decoders, from the configuration (:mod:`model.graph_spec`)."""

from collections.abc import Callable

from model.bundle import Dtype, StateRole, StateSpec
from model.config import AttentionConfig, LayerConfig, MixerKind, ModelConfig
from model.mixers import required
from model.recurrent_cells import CELLS
from model.recurrent_config import AlignmentKind, BridgeKind, RecurrentConfig


def _attention_states(config: ModelConfig, layer: LayerConfig, index: int) -> list[StateSpec]:
    del config
    attention = required(layer.attention)
    shape = (attention.num_kv_heads, "length", attention.head_size)
    return [_state(name, index, StateRole.KV, shape) for name in ("key", "value")]


def _ssru_states(config: ModelConfig, layer: LayerConfig, index: int) -> list[StateSpec]:
    del layer
    return [_state("recurrent", index, StateRole.RECURRENT, (config.hidden_size,))]


def _convolution_states(config: ModelConfig, layer: LayerConfig, index: int) -> list[StateSpec]:
    size = required(layer.convolution).size
    return [_state("convolution", index, StateRole.RECURRENT, (size - 1, config.hidden_size))]


MIXER_STATES: dict[MixerKind, Callable[[ModelConfig, LayerConfig, int], list[StateSpec]]] = {
    MixerKind.ATTENTION: _attention_states,
    MixerKind.SSRU: _ssru_states,
    MixerKind.SHORT_CONVOLUTION: _convolution_states,
}


def _state(
    kind: str,
    layer: int,
    role: StateRole,
    shape: tuple[int | str, ...],
    *,
    from_source: bool = False,
) -> StateSpec:
    name = f"{kind}.{layer}"
    return StateSpec(
        name=name,
        role=role,
        dtype=Dtype.FLOAT32,
        shape=shape,
        input=f"past.{name}",
        output=f"present.{name}",
        source=name if from_source or role == StateRole.CROSS else None,
    )


def _cross_states(attention: AttentionConfig, index: int) -> list[StateSpec]:
    shape = (attention.num_kv_heads, "source_length", attention.head_size)
    return [_state(name, index, StateRole.CROSS, shape) for name in ("cross_key", "cross_value")]


def decoder_states(config: ModelConfig) -> tuple[StateSpec, ...]:
    """Every state of the decoder of ``config``, layer by layer."""
    if config.recurrent is not None:
        return recurrent_states(config, config.recurrent)
    stack = config.decoder
    if stack is None:
        return ()
    states: list[StateSpec] = []
    for index, layer in enumerate(stack.layers[held] for held in stack.applied):
        if layer.mixer is not None:
            states += MIXER_STATES[layer.mixer](config, layer, index)
        if layer.cross_attention is not None:
            states += _cross_states(layer.cross_attention, index)
    return tuple(states)


def recurrent_states(model: ModelConfig, config: RecurrentConfig) -> tuple[StateSpec, ...]:
    """Every state of a recurrent decoder: see :class:`model.recurrent.RecurrentDecoder`."""
    role, shape = StateRole.RECURRENT, (config.decoder_size,)
    has_bridge = config.bridge != BridgeKind.ZERO
    states = [
        _state(name, layer, role, shape, from_source=has_bridge)
        for layer in range(config.num_decoder_layers)
        for name in CELLS[config.cell].state
    ]
    top = config.num_decoder_layers - 1
    if config.alignment is not None:
        is_additive = config.alignment.kind == AlignmentKind.ADDITIVE
        key_size = config.alignment.size if is_additive else config.vector_size
        for name, size in (("cross_key", key_size), ("cross_value", config.vector_size)):
            states.append(_state(name, top, StateRole.CROSS, (1, "source_length", size)))
    if config.input_feeding:
        states.append(_state("fed", top, role, (model.hidden_size,)))
    return tuple(states)
