"""The ``attend_encode`` graph: ``encode`` with the weights of the encoder's self-attention.

It is derived from the finished ``encode`` graph, in any precision, and shares its weights' file.
Each layer's weights are an output of their own: only selected layers are copied to the host, and
``head_weights`` combines a layer's heads inside the graph.
"""

from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from export.attention_graph import OPERATOR, SOFTMAX, num_heads_of, operator_weights
from export.graph_files import load_graph
from export.quantized_matmul import constant
from export.window_weights import WINDOWED, WindowWeights, weights_values
from model.bundle import (
    ATTEND_ENCODE,
    PIXELS,
    SAMPLES,
    AttentionKind,
    Dtype,
    GraphSpec,
    TensorSpec,
)
from model.config import ModelConfig

FILE = "attend_encode.onnx"
HEAD_WEIGHTS = "head_weights"


def add_encoder_attention_graph(
    config: ModelConfig, graphs: dict[str, GraphSpec], directory: Path
) -> dict[str, GraphSpec]:
    """Writes ``attend_encode.onnx`` into ``directory`` and returns ``graphs`` with its signature.

    Returns ``graphs`` unchanged if there is no encoder, if it reads images, for which servers have
    no such call, if it has no attention, or if its layers have different numbers of heads.
    """
    encode = graphs.get("encode")
    if encode is None or any(spec.name in (PIXELS, SAMPLES) for spec in encode.inputs):
        return graphs
    model = load_graph(directory / encode.file)
    nodes = [node for node in model.graph if _is_attention(node)]
    if config.rereading is not None and config.encoder is not None:
        del nodes[len(config.encoder.applied) :]  # the others are those of the decoder
    numbers = {num_heads_of(node) for node in nodes}
    if len(numbers) != 1:
        return graphs
    (num_heads,) = numbers
    tape = Tape()
    by_layer = [_weights_of(tape, model.graph, node) for node in nodes]
    rows = ir.Value(
        name=HEAD_WEIGHTS,
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(("chosen", num_heads)),
    )
    model.graph.inputs.append(rows)
    specs = []
    for layer, weights in enumerate(by_layer):
        spec = TensorSpec(
            name=f"{AttentionKind.ENCODER}.{layer}",
            dtype=Dtype.FLOAT32,
            shape=("batch", "chosen", "length", "length"),
        )
        combined = _combined(tape, rows, weights, spec.name)
        combined.dtype, combined.shape = ir.DataType.FLOAT, ir.Shape(spec.shape)
        model.graph.outputs.append(combined)
        specs.append(spec)
    for value in tape.initializers:
        model.graph.register_initializer(value)
    model.graph.extend(tape.nodes)
    ir.save(model, directory / FILE)  # the model's weights stay where they are
    head_weights = TensorSpec(name=HEAD_WEIGHTS, dtype=Dtype.FLOAT32, shape=("chosen", num_heads))
    attend = msgspec.structs.replace(
        encode,
        file=FILE,
        inputs=(*encode.inputs, head_weights),
        outputs=(*encode.outputs, *specs),
    )
    return graphs | {ATTEND_ENCODE: attend}


def _combined(tape: Tape, rows: ir.Value, weights: ir.Value, name: str) -> ir.Value:
    """``rows [chosen, heads]`` times ``weights [batch, heads, n, n]``, for each row and text."""
    shape = constant(tape, f"{name}.flat", np.array([0, 0, -1], np.int64))
    flat = tape.op("Reshape", [weights, shape])
    product = tape.op("MatMul", [rows, flat])
    batch = tape.op("Shape", [weights], {"end": 1})
    length = tape.op("Shape", [weights], {"start": 2})
    chosen = tape.op("Shape", [rows], {"end": 1})
    whole = tape.op("Concat", [batch, chosen, length], {"axis": 0})
    return tape.op("Reshape", [product, whole], output=ir.Value(name=name))


def _is_attention(node: ir.Node) -> bool:
    """Whether ``node`` is an attention of tokens to tokens, not that of global tokens."""
    if node.op_type == SOFTMAX:
        return weights_values(node)
    return node.op_type == WINDOWED or (node.op_type == OPERATOR and node.inputs[3] is None)


def _weights_of(tape: Tape, graph: ir.Graph, node: ir.Node) -> ir.Value:
    """The weights ``[batch, heads, length, length]`` of an attention."""
    if node.op_type == OPERATOR:
        return operator_weights(tape, node)
    if node.op_type == SOFTMAX:
        return tape.op("Cast", [node.outputs[0]], {"to": ir.DataType.FLOAT})
    return WindowWeights(tape, graph, node).weights()
