"""int8 weights and activations, with standard operators.

Activations are quantised row by row while the graph runs, so that a row's result does not
depend on the rows it is batched with. docs/decisions/0006-int8-by-rows.md has what was measured.
"""

from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import DeduplicateInitializersPass, RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from export.graph_files import load_graph, save_graph
from model.bundle import Graph
from model.config import Kind, ModelConfig, NormOrder

Weight = NDArray[np.float32]  # [inputs, outputs]

SMALLEST_SCALE = 1e-9


def row_int8(tape: Tape, x: ir.Value, name: str, weight: Weight) -> ir.Value:
    """``MatMulInteger`` with a scale for each output and, at run time, for each row.

    Standard operators. Both sides are unsigned bytes around 128: with signed weights, CPUs
    that lack VNNI saturate the sum of two products (twice the error was measured), and
    those that have it run the two forms alike.
    """

    def constant(label: str, value: NDArray[np.generic]) -> ir.Value:
        return _initializer(tape, f"{name}.{label}", value)

    scales = np.maximum(np.abs(weight).max(0), SMALLEST_SCALE) / 127
    quantized = np.clip(np.round(weight / scales), -127, 127) + 128
    zero = constant("zero", np.array(128, np.uint8))
    last_axis = constant("axis", np.array([-1], np.int64))
    magnitude = tape.op("ReduceMax", [tape.op("Abs", [x]), last_axis], {"keepdims": 1})
    floor = constant("floor", np.array(SMALLEST_SCALE, np.float32))
    largest = tape.op("Max", [magnitude, floor])  # [batch, length, 1]
    step = constant("step", np.array(1 / 127, np.float32))
    integers = tape.op("QuantizeLinear", [tape.op("Div", [x, largest]), step, zero])
    matrix = constant("int8", quantized.astype(np.uint8))
    product = tape.op("MatMulInteger", [integers, matrix, zero, zero])
    product = tape.op("Cast", [product], {"to": ir.DataType.FLOAT})
    output_scales = constant("scales", (scales / 127).astype(np.float32))
    return tape.op("Mul", [tape.op("Mul", [product, output_scales]), largest])


def _weight(node: ir.Node) -> Weight | None:
    """The constant matrix that ``node`` multiplies with, if that is all it does.

    Either ``MatMul``, or ``Gemm(transB=1)`` with a tied embedding.
    """
    if node.domain or node.op_type not in ("MatMul", "Gemm") or len(node.inputs) != 2:
        return None
    matrix = node.inputs[1]
    if matrix is None or matrix.const_value is None or len(matrix.const_value.shape) != 2:
        return None
    weight: Weight = matrix.const_value.numpy()
    if node.op_type == "MatMul":
        return weight
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}
    return weight.T if plain | attributes == plain and "transB" in attributes else None


def _name(node: ir.Node) -> str:
    matrix = node.inputs[1]
    return "weight" if matrix is None or matrix.name is None else matrix.name


def kept_in_fp32(config: ModelConfig) -> tuple[str, ...]:
    """Endings of the names of weights that lose too much.

    A post-norm encoder's queries, keys and values read the residual stream, whose few large
    channels cannot be evened out (:mod:`export.equalize`). On MiniLM they cost 2 % of the
    speed, and raise the worst cosine of short texts from 0.982 to 0.991.
    """
    stack = config.encoder
    if (
        config.kind == Kind.ENCODER
        and stack is not None
        and any(layer.norm_order == NormOrder.POST for layer in stack.layers)
    ):
        return ("mixer.qkv.weight",)
    return ()


def quantize_graph(model: ir.Model, kept: tuple[str, ...] = ()) -> None:
    """Replaces every product with a constant matrix, in place, but for those ``kept``."""
    for node in list(model.graph):
        weight = _weight(node)
        x = node.inputs[0] if node.inputs else None
        if weight is None or x is None or _name(node).endswith(kept):
            continue
        tape = Tape()
        product = row_int8(tape, x, _name(node), weight)
        for value in tape.initializers:
            held = model.graph.initializers.get(value.name or "")
            if held is None:
                model.graph.register_initializer(value)
            else:  # a matrix that layers share
                ir.convenience.replace_all_uses_with(value, held)
        model.graph.insert_before(node, tape.nodes)
        name = node.outputs[0].name
        ir.convenience.replace_all_uses_with(node.outputs[0], product, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        product.name = name
    DeduplicateInitializersPass(size_limit=16)(model)
    RemoveUnusedNodesPass()(model)


def quantize(config: ModelConfig, graphs: dict[str, Graph], directory: Path) -> None:
    """Rewrites the fp32 graphs in ``directory`` with int8 weights."""
    kept = kept_in_fp32(config)
    for graph in graphs.values():
        model = load_graph(directory / graph.file)
        quantize_graph(model, kept)
        save_graph(model, directory / graph.file)


def _initializer(tape: Tape, name: str, array: NDArray[np.generic]) -> ir.Value:
    return tape.initializer(ir.tensor(array, name=name))
