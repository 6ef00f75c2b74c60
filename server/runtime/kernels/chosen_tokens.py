"""Makes the last attention layer compute only the tokens whose logits are needed.

Exported graphs gather the tokens at ``logit_positions`` after attention's output projection and
residual (``model.layers.DecoderLayer``). Here both operands are gathered instead, and attention may
leave out the outputs of other tokens.
"""

from collections import Counter

import onnx

from server.runtime.kernels import attention, blocks, int8, matmul
from server.runtime.kernels.graph import LOGIT_POSITIONS, GraphIndex

_PRODUCTS = (int8.OPERATOR, blocks.OPERATOR, matmul.OPERATOR)
# Inputs of a product without norms, counted from the end: server/runtime/kernels/epilogue.py.
_LENGTHS, _RESIDUAL = -1, -2


def choose_tokens_early(graph: onnx.GraphProto, index: GraphIndex) -> None:
    """Lets a product compute only the rows of its output that a ``Gather`` takes.

    Norms must not be fused yet. ``index``: an index of ``graph`` before nodes were replaced.
    """
    if index.types.get(LOGIT_POSITIONS) != onnx.TensorProto.INT32:
        return
    producers = {name: node for node in graph.node for name in node.output if name}
    num_readers = Counter(name for node in graph.node for name in node.input)
    num_readers.update(value.name for value in graph.output)
    for gather in [node for node in graph.node if _gathers_rows(node)]:
        reshape = producers.get(gather.input[0])
        if reshape is None or reshape.op_type != "Reshape":
            continue
        product = producers.get(reshape.input[0])
        if product is None or product.op_type not in _PRODUCTS:
            continue
        x, y = product.input[0], product.output[0]
        if any(num_readers[name] > 1 for name in (y, gather.input[0])):
            continue
        x_shape, y_shape = index.shape(x), index.shape(y)
        rows = index.inline_array(reshape.input[1])
        if rows is None or rows.tolist() != [-1, *y_shape[-1:]]:
            continue
        if not x_shape or not isinstance(x_shape[-1], int):
            continue
        if not _is_chosen(producers, gather.input[1]):
            continue
        source = producers.get(x)
        if source is not None and source.op_type == attention.OPERATOR and num_readers[x] == 1:
            attention.choose_tokens(source, LOGIT_POSITIONS)
        _gather_operands(graph, product, reshape, gather, x_shape[-1])
        return  # a graph chooses the tokens of one product


def _gathers_rows(node: onnx.NodeProto) -> bool:
    return node.op_type == "Gather" and all(item.i == 0 for item in node.attribute)


def _is_chosen(producers: dict[str, onnx.NodeProto], name: str) -> bool:
    """Whether a value has the elements of ``logit_positions``."""
    while (node := producers.get(name)) is not None and node.op_type in ("Cast", "Reshape"):
        name = node.input[0]
    return name == LOGIT_POSITIONS


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
    made = []
    for place, rows, label in ((0, shape, "x"), (_RESIDUAL, reshape.input[1], "residual")):
        if name := product.input[place]:
            flat, chosen = f"{y}.{label}", f"{y}.chosen_{label}"
            made.append(onnx.helper.make_node("Reshape", [name, rows], [flat]))
            made.append(onnx.helper.make_node("Gather", [flat, gather.input[1]], [chosen], axis=0))
            product.input[place] = chosen
    product.input[_LENGTHS] = ""  # no row is padding
    product.output[0] = gather.output[0]
    nodes = [node for node in graph.node if node not in (product, reshape)]
    place = nodes.index(gather)
    nodes[place : place + 1] = [*made, product]
    del graph.node[:]
    graph.node.extend(nodes)
