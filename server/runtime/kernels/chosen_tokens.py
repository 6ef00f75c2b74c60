"""Makes the last attention layer compute only the tokens whose logits are needed.

Exported graphs gather the tokens at ``logit_positions`` after attention's output projection and
residual (``model.layers.DecoderLayer``). Here both operands are gathered instead, and attention may
leave out the outputs of other tokens.
"""

import onnx

from server.runtime.kernels import attention, blocks, int8, matmul
from server.runtime.kernels.adapters import FIRST_INPUT
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.graph_inputs import LOGIT_POSITIONS
from server.runtime.rewriting.nodes import attributes_of

# The index of the bias of products; residual and lengths follow it: native/matmul_call.h.
_BIAS = {int8.OPERATOR: 6, blocks.OPERATOR: 2, matmul.OPERATOR: 2}


def choose_tokens_early(graph: onnx.GraphProto, index: GraphIndex) -> None:
    """Lets a product compute only the rows of its output that a ``Gather`` takes.

    Products must be native already, and norms not fused yet. ``index``: the index of ``graph``.
    """
    if index.types.get(LOGIT_POSITIONS) != onnx.TensorProto.INT32:
        return
    for gather in index.nodes:
        reshape = index.producer(gather, 0, "Reshape") if _gathers_rows(gather) else None
        product = None if reshape is None else index.producers.get(reshape.input[0])
        if reshape is None or product is None or product.op_type not in _BIAS:
            continue
        if index.only_consumer(product) is None or index.only_consumer(reshape) is None:
            continue
        x, y = product.input[0], product.output[0]
        x_shape, y_shape = index.shape(x), index.shape(y)
        rows = index.inline_array(reshape.input[1])
        if rows is None or rows.tolist() != [-1, *y_shape[-1:]]:
            continue
        if not x_shape or not isinstance(x_shape[-1], int):
            continue
        if index.skip(gather.input[1], "Cast", "Reshape") != LOGIT_POSITIONS:
            continue
        source = index.producer(product, 0, attention.OPERATOR)
        if source is not None and index.only_consumer(source) is not None:
            attention.choose_tokens(source, LOGIT_POSITIONS)
        _gather_operands(graph, product, reshape, gather, x_shape[-1])
        return  # a graph chooses the tokens of one product


def _gathers_rows(node: onnx.NodeProto) -> bool:
    return node.op_type == "Gather" and attributes_of(node).get("axis", 0) == 0


def _gather_operands(
    graph: onnx.GraphProto,
    product: onnx.NodeProto,
    reshape: onnx.NodeProto,
    gather: onnx.NodeProto,
    width: int,
) -> None:
    """Replaces ``product``, ``reshape`` and ``gather``. ``width``: that of the product's input."""
    y = product.output[0]
    shape = f"{y}.x_shape"
    graph.initializer.append(
        onnx.helper.make_tensor(shape, onnx.TensorProto.INT64, [2], [-1, width])
    )
    new_nodes: list[onnx.NodeProto] = []
    residual = _BIAS[product.op_type] + 1
    if adapters := product.input[FIRST_INPUT[product.op_type] :]:
        new_nodes += _choose_adapters(y, adapters[0], product.input[0], gather.input[1])
        product.input[FIRST_INPUT[product.op_type]] = new_nodes[-1].output[0]
    for operand, rows, label in ((0, shape, "x"), (residual, reshape.input[1], "residual")):
        if name := product.input[operand]:
            flat, chosen = f"{y}.{label}", f"{y}.chosen_{label}"
            chosen_inputs = [flat, gather.input[1]]
            new_nodes.append(onnx.helper.make_node("Reshape", [name, rows], [flat]))
            new_nodes.append(onnx.helper.make_node("Gather", chosen_inputs, [chosen], axis=0))
            product.input[operand] = chosen
    product.input[residual + 1] = ""  # no row is padding
    product.output[0] = gather.output[0]
    nodes = [node for node in graph.node if node not in (product, reshape)]
    position = nodes.index(gather)
    nodes[position : position + 1] = [*new_nodes, product]
    del graph.node[:]
    graph.node.extend(nodes)


def _choose_adapters(y: str, adapters: str, x: str, positions: str) -> list[onnx.NodeProto]:
    """Nodes of the adapter of each of ``positions``, ``row * length + index``; the last has it.

    ``x``: ``[rows, length, width]``.
    """
    length, row, chosen = (f"{y}.adapters.{name}" for name in ("length", "row", "chosen"))
    wide = f"{y}.adapters.positions"
    return [
        onnx.helper.make_node("Shape", [x], [length], start=1, end=2),
        onnx.helper.make_node("Cast", [positions], [wide], to=onnx.TensorProto.INT64),
        onnx.helper.make_node("Div", [wide, length], [row]),
        onnx.helper.make_node("Gather", [adapters, row], [chosen], axis=0),
    ]
