"""An int8 key/value cache, quantized by ``GroupQueryAttention`` itself.

The operator writes a new token's keys and values as integers and multiplies them by a scale when
it reads them. The scale is a constant in the graph: the largest magnitude over calibration text,
divided by 127. Larger values saturate.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.attention_graph import OPERATOR
from export.errors import UnsupportedError
from export.graph_files import load_graph
from export.perplexity import EvaluationSet, run_teacher_forced
from export.runtime import Floats
from export.signatures import Signatures
from export.speech import Source
from export.state_specs import decoder_states
from model.bundle import Device, Dtype, KvCache, StateRole, StateSpec
from model.config import Kind, ModelConfig, ScoreKind

# The largest magnitude of each channel, [kv_heads, head_size], by the name of the state.
CacheRanges = Mapping[str, Floats]

# Indices of the operator's inputs.
_PAST_KEY, _KEY_SCALE, _VALUE_SCALE, _NUM_INPUTS = 3, 12, 13, 14
_LARGEST_INTEGER = 127
NUM_RANDOM_ROWS, RANDOM_LENGTH, SEED = 4, 32, 20170612
MIN_DISTINCT_TOKENS = 32

# CUDA's fast decode kernel for an int8 cache (XQA) needs one scale per layer, and these head and
# group sizes. All other kernels have one scale per channel.
XQA_HEAD_SIZES = (64, 128, 256)
XQA_GROUP_SIZES = (4, 8, 16, 32)


def check_kv_cache_supported(config: ModelConfig, device: Device) -> None:
    """Checks that ``device`` supports an int8 cache for a model of ``config``.

    Raises:
        UnsupportedError: the model has no key/value cache, or ``device`` does not support it.
    """
    option = f"--kv-cache {KvCache.INT8}"
    if not any(state.role == StateRole.KV for state in decoder_states(config)):
        raise UnsupportedError(f"{option}: this model has no key/value cache")
    if config.audio is not None:
        raise UnsupportedError(f"{option}: not for speech, whose targets are short")
    if config.kind == Kind.ENCODER_DECODER and config.patches is not None:
        raise UnsupportedError(f"{option}: not for texts about images, which are short")
    layers = config.decoder.layers if config.decoder is not None else ()
    if any(layer.attention and layer.attention.score == ScoreKind.ADDITIVE for layer in layers):
        raise UnsupportedError(f"{option}: additive scores read the cache in its own type")
    attentions = [layer.attention for layer in layers if layer.attention]
    if device == Device.CUDA and any(x.bias or x.relative for x in attentions):
        raise UnsupportedError(
            f"{option}: on CUDA, attention with a bias (relative positions, ALiBi) does not "
            "support an int8 cache"
        )


def calibration_set(config: ModelConfig, evaluation: EvaluationSet | None) -> EvaluationSet:
    """The text of ``evaluation``, plus rows of random tokens if it has few distinct tokens.

    It has few if the vocabulary covers almost none of the text.
    """
    if evaluation is not None and len(set().union(*evaluation.rows)) >= MIN_DISTINCT_TOKENS:
        return evaluation
    random = np.random.default_rng(SEED)
    length = min(RANDOM_LENGTH, config.position.max_positions)
    shape = (NUM_RANDOM_ROWS, length)
    rows: list[list[int]] = random.integers(0, config.vocabulary_size, shape).tolist()
    sources: list[Source] | None = list(rows) if config.kind == Kind.ENCODER_DECODER else None
    if evaluation is not None:
        sources = None if sources is None else [*(evaluation.sources or []), *sources]
        rows = [*evaluation.rows, *rows]
    return EvaluationSet(rows, sources)


def calibrate(
    rows: EvaluationSet, directory: Path, graphs: Signatures, *, is_large: bool = False
) -> CacheRanges:
    """Runs the fp32 graphs in ``directory`` over ``rows`` and measures their cached values."""
    decoder = run_teacher_forced(rows, directory, graphs, is_large=is_large).decoder
    ranges: dict[str, Floats] = {}
    for state in _kv_states(graphs):
        held = decoder.states[state.name]  # [slots, kv_heads, capacity, head_size]
        each = [np.abs(held[slot, :, : len(row) - 1]).max(1) for slot, row in enumerate(rows.rows)]
        ranges[state.name] = np.max(each, axis=0).astype(np.float32)
    return ranges


def quantize_cache(
    graphs: Signatures, directory: Path, ranges: CacheRanges, device: Device
) -> Signatures:
    """Converts the ``KV`` states of the graph in ``directory`` to int8; keeps its weights' file."""
    decode = graphs["decode"]
    by_input = {state.input: state for state in _kv_states(graphs)}
    model = load_graph(directory / decode.file)
    for node in model.graph:
        past = _input(node, _PAST_KEY) if node.op_type == OPERATOR else None
        if past is not None and past.name in by_input:
            _quantize(model.graph, node, by_input, ranges, device)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name in by_input or any(s.output == value.name for s in by_input.values()):
            value.dtype = ir.DataType.INT8
    ir.save(model, directory / decode.file)
    states = tuple(
        msgspec.structs.replace(state, dtype=Dtype.INT8) if state.input in by_input else state
        for state in decode.states
    )
    return graphs | {"decode": msgspec.structs.replace(decode, states=states)}


def _kv_states(graphs: Signatures) -> tuple[StateSpec, ...]:
    return tuple(state for state in graphs["decode"].states if state.role == StateRole.KV)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if len(node.inputs) > index else None


def _quantize(
    graph: ir.Graph,
    node: ir.Node,
    by_input: Mapping[str, StateSpec],
    ranges: CacheRanges,
    device: Device,
) -> None:
    key, value = (
        ranges[by_input[past.name].name]
        for past in node.inputs[_PAST_KEY : _PAST_KEY + 2]
        if past is not None and past.name is not None
    )
    is_per_tensor = device == Device.CUDA and _supports_xqa(node, key.shape[1])
    if is_per_tensor:
        factor = _match_ranges(graph, node, key, value)
        both = np.maximum(key.max(), factor * value.max())
        scales = [_scale(graph, f"{node.name}.cache_scale", np.array([both]))] * 2
    else:
        scales = [
            _scale(graph, f"{node.name}.{kind}_scale", channels[None, :, None])
            for kind, channels in (("key", key), ("value", value))
        ]
    node.resize_inputs(_NUM_INPUTS)
    for index, scale in zip((_KEY_SCALE, _VALUE_SCALE), scales, strict=True):
        node.replace_input_with(index, scale)
    quantization = "PER_TENSOR" if is_per_tensor else "PER_CHANNEL"
    for name in ("k_quant_type", "v_quant_type"):
        node.attributes[name] = ir.AttrString(name, quantization)
    node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
    for output in node.outputs[1:3]:
        output.dtype = ir.DataType.INT8


def _match_ranges(
    graph: ir.Graph, node: ir.Node, key: NDArray[np.float32], value: NDArray[np.float32]
) -> float:
    """Scales values to the range of keys, so that both can share a scale, and the output back.

    The attention's output is linear in its values, and a power of two is exact.

    Returns:
        The factor by which values are multiplied.
    """
    packed, context = node.inputs[0], node.outputs[0]
    if packed is None or packed.dtype is None or not (key.max() > 0 and value.max() > 0):
        return 1.0
    factor = float(2.0 ** np.floor(np.log2(key.max() / value.max())))
    num_values = value.size
    num_others = int(node.attributes["num_heads"].value) * value.shape[1] + key.size
    factors = np.repeat([1.0, factor], [num_others, num_values])
    up = _constant(graph, f"{node.name}.larger", factors, packed)
    scaled_up = ir.node("Mul", [packed, up])
    scaled_up.outputs[0].dtype, scaled_up.outputs[0].shape = packed.dtype, packed.shape
    graph.insert_before(node, scaled_up)
    node.replace_input_with(0, scaled_up.outputs[0])
    down = _constant(graph, f"{node.name}.back", np.array(1 / factor), packed)
    scaled_down = ir.node("Mul", [context, down])
    scaled_down.outputs[0].dtype, scaled_down.outputs[0].shape = packed.dtype, context.shape
    ir.convenience.replace_all_uses_with(context, scaled_down.outputs[0])
    scaled_down.replace_input_with(0, context)
    graph.insert_after(node, scaled_down)
    return factor


def _constant(graph: ir.Graph, name: str, array: NDArray[np.float64], like: ir.Value) -> ir.Value:
    """An initializer with the element type of ``like``."""
    if like.dtype is None:
        raise ValueError(f"{like.name} has no known element type")
    tensor = ir.tensor(array.astype(like.dtype.numpy()), name=name)
    value = ir.Value(name=name, const_value=tensor)
    value.dtype, value.shape = like.dtype, ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def _supports_xqa(node: ir.Node, head_size: int) -> bool:
    group_size = int(node.attributes["num_heads"].value) // int(
        node.attributes["kv_num_heads"].value
    )
    return head_size in XQA_HEAD_SIZES and group_size in XQA_GROUP_SIZES


def _scale(graph: ir.Graph, name: str, ranges: NDArray[np.float32]) -> ir.Value:
    """An initializer with the scale of each range; 1 for a range of zero."""
    scales = np.where(ranges > 0, ranges / _LARGEST_INTEGER, 1).astype(np.float32)
    value = ir.Value(name=name, const_value=ir.tensor(scales, name=name))
    value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape(scales.shape)
    graph.register_initializer(value)
    return value
