"""Keys and values of earlier tokens in eight bits, by ``GroupQueryAttention``'s own quantisation.

The operator writes a new token's keys and values as integers and reads them back times a scale,
which is a constant of the graph: the largest value that was seen over text, divided by 127. What is
larger later is cut.
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
from export.perplexity import Evaluation, read
from export.runtime import Floats
from export.signatures import Signatures, decoder_states
from model.bundle import Device, Dtype, KvCache, StateRole, StateSpec
from model.config import Kind, ModelConfig

# By the name of a state: the largest magnitude of each channel, [kv_heads, head_size].
Largest = Mapping[str, Floats]

# Places of the operator's inputs.
_PAST_KEY, _KEY_SCALE, _VALUE_SCALE, _NUM_INPUTS = 3, 12, 13, 14
_LARGEST_INTEGER = 127
NUM_RANDOM_ROWS, RANDOM_LENGTH, SEED = 4, 32, 20170612
MIN_DISTINCT_TOKENS = 32

# CUDA's fast decode kernel for such a cache (XQA) takes one scale for all that a layer holds, and
# heads of these sizes in groups of these sizes. Elsewhere each channel has its own.
XQA_HEAD_SIZES = (64, 128, 256)
XQA_GROUP_SIZES = (4, 8, 16, 32)


def check_supported(config: ModelConfig, device: Device) -> None:
    """Refuses a model whose cache cannot be held in eight bits.

    Raises:
        UnsupportedError: it has none, or ``device`` cannot compute over it.
    """
    option = f"--kv-cache {KvCache.INT8}"
    if not any(state.role == StateRole.KV for state in decoder_states(config)):
        raise UnsupportedError(f"{option}: this model has no self-attention with a cache")
    layers = config.decoder.layers if config.decoder is not None else ()
    biased = [layer for layer in layers if layer.attention and layer.attention.bias is not None]
    if device == Device.CUDA and biased:
        raise UnsupportedError(
            f"{option}: CUDA does not compute an attention with a bias (relative positions, "
            "ALiBi) over such a cache"
        )


def calibration(config: ModelConfig, evaluation: Evaluation | None) -> Evaluation:
    """The text of ``evaluation``; with rows of random tokens where it says little of the model.

    That is where a tokenizer knows next to none of its words.
    """
    if evaluation is not None and len(set().union(*evaluation.rows)) >= MIN_DISTINCT_TOKENS:
        return evaluation
    random = np.random.default_rng(SEED)
    length = min(RANDOM_LENGTH, config.position.max_positions)
    shape = (NUM_RANDOM_ROWS, length)
    rows: list[list[int]] = random.integers(0, config.vocabulary_size, shape).tolist()
    sources = rows if config.kind == Kind.ENCODER_DECODER else None
    if evaluation is not None:
        sources = None if sources is None else [*(evaluation.sources or []), *sources]
        rows = [*evaluation.rows, *rows]
    return Evaluation(rows, sources)


def observe(
    rows: Evaluation, directory: Path, graphs: Signatures, *, is_large: bool = False
) -> Largest:
    """Reads ``rows`` with the fp32 graphs in ``directory`` and looks at what their caches hold."""
    decoder = read(rows, directory, graphs, is_large=is_large).decoder
    largest: dict[str, Floats] = {}
    for state in _cached(graphs):
        held = decoder.states[state.name]  # [slots, kv_heads, capacity, head_size]
        each = [np.abs(held[slot, :, : len(row) - 1]).max(1) for slot, row in enumerate(rows.rows)]
        largest[state.name] = np.max(each, axis=0).astype(np.float32)
    return largest


def quantize_cache(
    graphs: Signatures, directory: Path, largest: Largest, device: Device
) -> Signatures:
    """Turns the ``KV`` states of the graph in ``directory`` into int8; the weights' file stays."""
    decode = graphs["decode"]
    by_input = {state.input: state for state in _cached(graphs)}
    model = load_graph(directory / decode.file)
    for node in model.graph:
        past = _input(node, _PAST_KEY) if node.op_type == OPERATOR else None
        if past is not None and past.name in by_input:
            _quantize(model.graph, node, by_input, largest, device)
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name in by_input or any(s.output == value.name for s in by_input.values()):
            value.dtype = ir.DataType.INT8
    ir.save(model, directory / decode.file)
    states = tuple(
        msgspec.structs.replace(state, dtype=Dtype.INT8) if state.input in by_input else state
        for state in decode.states
    )
    return graphs | {"decode": msgspec.structs.replace(decode, states=states)}


def _cached(graphs: Signatures) -> tuple[StateSpec, ...]:
    return tuple(state for state in graphs["decode"].states if state.role == StateRole.KV)


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if len(node.inputs) > place else None


def _quantize(
    graph: ir.Graph,
    node: ir.Node,
    by_input: Mapping[str, StateSpec],
    largest: Largest,
    device: Device,
) -> None:
    key, value = (
        largest[by_input[past.name].name]
        for past in node.inputs[_PAST_KEY : _PAST_KEY + 2]
        if past is not None and past.name is not None
    )
    is_one = device == Device.CUDA and _suits_xqa(node, key.shape[1])
    if is_one:
        ratio = _balance(graph, node, key, value)
        both = np.maximum(key.max(), ratio * value.max())
        scales = [_scale(graph, f"{node.name}.cache_scale", np.array([both]))] * 2
    else:
        scales = [
            _scale(graph, f"{node.name}.{kind}_scale", channels[None, :, None])
            for kind, channels in (("key", key), ("value", value))
        ]
    node.resize_inputs(_NUM_INPUTS)
    for place, scale in zip((_KEY_SCALE, _VALUE_SCALE), scales, strict=True):
        node.replace_input_with(place, scale)
    how = "PER_TENSOR" if is_one else "PER_CHANNEL"
    for name in ("k_quant_type", "v_quant_type"):
        node.attributes[name] = ir.AttrString(name, how)
    node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", 8)
    for output in node.outputs[1:3]:
        output.dtype = ir.DataType.INT8


def _balance(
    graph: ir.Graph, node: ir.Node, key: NDArray[np.float32], value: NDArray[np.float32]
) -> float:
    """Makes values about as large as keys, so that one scale suits both, and undoes it after.

    The attention's output is linear in its values, and a power of two costs no digit.

    Returns:
        By how much values are larger now.
    """
    packed, context = node.inputs[0], node.outputs[0]
    if packed is None or packed.dtype is None or not (key.max() > 0 and value.max() > 0):
        return 1.0
    ratio = float(2.0 ** np.floor(np.log2(key.max() / value.max())))
    num_values = value.size
    num_others = int(node.attributes["num_heads"].value) * value.shape[1] + key.size
    factors = np.repeat([1.0, ratio], [num_others, num_values])
    larger = ir.node("Mul", [packed, _constant(graph, f"{node.name}.larger", factors, packed)])
    larger.outputs[0].dtype, larger.outputs[0].shape = packed.dtype, packed.shape
    graph.insert_before(node, larger)
    node.replace_input_with(0, larger.outputs[0])
    back = _constant(graph, f"{node.name}.back", np.array(1 / ratio), packed)
    smaller = ir.node("Mul", [context, back])
    smaller.outputs[0].dtype, smaller.outputs[0].shape = packed.dtype, context.shape
    ir.convenience.replace_all_uses_with(context, smaller.outputs[0])
    smaller.replace_input_with(0, context)
    graph.insert_after(node, smaller)
    return ratio


def _constant(graph: ir.Graph, name: str, array: NDArray[np.float64], like: ir.Value) -> ir.Value:
    """Of the type of ``like``."""
    if like.dtype is None:
        raise ValueError(f"{like.name}: of no known type")
    tensor = ir.tensor(array.astype(like.dtype.numpy()), name=name)
    value = ir.Value(name=name, const_value=tensor)
    value.dtype, value.shape = like.dtype, ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def _suits_xqa(node: ir.Node, head_size: int) -> bool:
    group_size = int(node.attributes["num_heads"].value) // int(
        node.attributes["kv_num_heads"].value
    )
    return head_size in XQA_HEAD_SIZES and group_size in XQA_GROUP_SIZES


def _scale(graph: ir.Graph, name: str, largest: NDArray[np.float32]) -> ir.Value:
    """Of what is never other than zero, any scale will do."""
    scales = np.where(largest > 0, largest / _LARGEST_INTEGER, 1).astype(np.float32)
    value = ir.Value(name=name, const_value=ir.tensor(scales, name=name))
    value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape(scales.shape)
    graph.register_initializer(value)
    return value
