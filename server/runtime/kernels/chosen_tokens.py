"""Leaves out what the last attention layer computes of tokens whose logits nobody reads.

Exported graphs gather the tokens at ``logit_positions`` after the output product of attention, with
its residual (``model.layers.DecoderLayer``). Here both operands are gathered instead, and attention
may leave out the outputs of other tokens.
"""

from collections import Counter

import onnx

from server.runtime.kernels import attention, blocks, int8, matmul
from server.runtime.kernels.graph import LOGIT_POSITIONS, GraphIndex

# Which input of each product is the residual; the lengths follow it: native/matmul_call.h.
_RESIDUAL = {int8.OPERATOR: 7, blocks.OPERATOR: 3, matmul.OPERATOR: 3}
_CHOSEN_TOKENS = 12  # AttentionInput of native/attention_inputs.h


def choose_tokens_early(graph: onnx.GraphProto, index: GraphIndex) -> None:
    """Lets a product compute only the rows of its output that a ``Gather`` takes.

    ``index``: of ``graph`` before nodes were replaced.
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
        if product is None or product.op_type not in _RESIDUAL:
            continue
        x, y = product.input[0], product.output[0]
        if any(num_readers[name] > 1 for name in (y, gather.input[0])):
            continue
        (width,), y_width = index.shape(x)[-1:] or ("",), index.shape(y)[-1:]
        rows = index.inline_array(reshape.input[1])
        if rows is None or tuple(rows.tolist()) != (-1, *y_width) or not isinstance(width, int):
            continue
        if not _is_chosen(producers, gather.input[1]):
            continue
        source = producers.get(x)
        if source is not None and source.op_type == attention.OPERATOR and num_readers[x] == 1:
            source.input.extend([""] * (_CHOSEN_TOKENS - len(source.input)))
            source.input.append(LOGIT_POSITIONS)
        _gather_operands(graph, product, reshape, gather, width)
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
    """Replaces ``product``, ``reshape`` and ``gather``. ``width``: of the product's input."""
    y = product.output[0]
    shape = f"{y}.x_shape"
    graph.initializer.append(
        onnx.helper.make_tensor(shape, onnx.TensorProto.INT64, [2], [-1, width])
    )
    residual = _RESIDUAL[product.op_type]
    made = []
    for place, rows, label in ((0, shape, "x"), (residual, reshape.input[1], "residual")):
        if name := product.input[place]:
            flat, chosen = f"{y}.{label}", f"{y}.chosen_{label}"
            made.append(onnx.helper.make_node("Reshape", [name, rows], [flat]))
            made.append(onnx.helper.make_node("Gather", [flat, gather.input[1]], [chosen], axis=0))
            product.input[place] = chosen
    product.input[residual + 1] = ""  # no row is padding
    product.output[0] = gather.output[0]
    nodes = [node for node in graph.node if node not in (product, reshape)]
    place = nodes.index(gather)
    nodes[place : place + 1] = [*made, product]
    del graph.node[:]
    graph.node.extend(nodes)
