"""Counts the nodes of a graph that native kernels compute, and those left to ONNX Runtime."""

from collections import Counter

import onnx

from server.runtime.contract import KernelNodes
from server.runtime.kernels import attention, blocks, embeddings, int8, matmul, norms, pooling, ssru
from server.runtime.kernels.fused_norms import count_norms
from server.runtime.kernels.library import Kernels
from server.runtime.rewriting.graph_index import GraphIndex
from server.runtime.rewriting.nodes import DOMAIN
from server.runtime.rewriting.patterns import sums_tokens

_NATIVE = {
    int8.OPERATOR: Kernels.INT8_MATMUL,
    blocks.OPERATOR: Kernels.BLOCK_MATMUL,
    matmul.OPERATOR: Kernels.MATMUL,
    attention.OPERATOR: Kernels.ATTENTION,
    norms.OPERATOR: Kernels.NORM,
    pooling.OPERATOR: Kernels.TOKEN_SUM,
    ssru.OPERATOR: Kernels.SSRU,
    **dict.fromkeys(embeddings.OPERATORS, Kernels.EMBEDDING),
}
_STANDARD = {
    int8.STANDARD_OPERATOR: Kernels.INT8_MATMUL,
    blocks.STANDARD_OPERATOR: Kernels.BLOCK_MATMUL,
    **dict.fromkeys(matmul.STANDARD_OPERATORS, Kernels.MATMUL),
    attention.STANDARD_OPERATOR: Kernels.ATTENTION,
    **dict.fromkeys(norms.STANDARD_OPERATORS, Kernels.NORM),
    pooling.STANDARD_OPERATOR: Kernels.TOKEN_SUM,
    embeddings.STANDARD_OPERATOR: Kernels.EMBEDDING,
}


def count_nodes(graph: GraphIndex) -> KernelNodes:
    """Counts the nodes of a graph as the server runs it, by kernel.

    Norms that are fused into a product count too.
    """
    native: Counter[str] = Counter()
    standard: Counter[str] = Counter()
    for node in graph.nodes:
        if node.domain == DOMAIN:
            native[_NATIVE[node.op_type].label] += 1
            native[Kernels.NORM.label] += count_norms(node)
        elif (kernel := _replacing_kernel(graph, node)) is not None:
            standard[kernel.label] += 1
    return KernelNodes(dict(sorted((+native).items())), dict(sorted(standard.items())))


def _replacing_kernel(graph: GraphIndex, node: onnx.NodeProto) -> Kernels | None:
    """Returns the kernel that replaces such nodes; ignores attributes, types and weights."""
    kernel = _STANDARD.get(node.op_type)
    if kernel == Kernels.MATMUL and not _has_constant_matrix(graph, node):
        return None
    if kernel == Kernels.EMBEDDING and not embeddings.gathers_rows(graph, node):
        return None
    if kernel == Kernels.TOKEN_SUM and not sums_tokens(graph, node):
        return None
    return kernel


def _has_constant_matrix(graph: GraphIndex, node: onnx.NodeProto) -> bool:
    """Whether the right operand is a constant; products of two activations have no kernel."""
    matrix = graph.initializers.get(node.input[1]) if len(node.input) > 1 else None
    return matrix is not None and len(matrix.dims) == 2
