"""Quantizes a graph's weights: finds its matrices, and converts each to its format."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import DeduplicateInitializersPass, RemoveUnusedNodesPass
from onnx_ir.tape import Tape

from export import block_matmul
from export.blocks import Blocks, can_have_blocks
from export.constant_matmuls import ConstantMatMul, array_of, constant_matmuls, is_matrix
from export.experts import is_mixture, quantized_mixture
from export.gptq import NO_MOMENTS, SecondMoments
from export.precision_schemes import PrecisionScheme, WeightFormat
from export.quantized_matmul import (
    CONTRIB,
    Int8Rows,
    Weight,
    constant,
    gather_rows,
    matmul_nbits,
    pack_bits,
    row_int8,
    tied_int8,
)
from model.config import Kind, ModelConfig, NormOrder

# Small, and errors change which experts run, or scale a whole one or the biases of a head.
ROUTERS = (
    "feed_forward.router.weight",
    "feed_forward.shared.gate.weight",
    "mixer.bias_gate.map.weight",
)
# These lose most, the output matrix by far: measured on SmolLM2 (docs/decisions/0011).
SENSITIVE = "feed_forward.output.weight"
OUTPUT = "head.output.weight"
# Small, and their inputs or outputs span many orders of magnitude.
SIGNAL = ("spectrogram.", "embedding.first_convolution.")
TOKEN_IDS = "token_ids"

MATMULS: dict[WeightFormat, Callable[[Tape, ir.Value, str, Weight], ir.Value]] = {
    WeightFormat.ROW_INT8: row_int8,
    WeightFormat.BLOCK_INT8: lambda tape, x, name, weight: matmul_nbits(tape, x, name, weight, 8),
    WeightFormat.BLOCK_INT4: lambda tape, x, name, weight: matmul_nbits(tape, x, name, weight, 4),
}
_DYNAMIC = {  # number of bits
    WeightFormat.DYNAMIC_INT8: 8,
    WeightFormat.DYNAMIC_INT6: 6,
    WeightFormat.DYNAMIC_INT4: 4,
}

# Divisors [inputs] of matrices' inputs, by the matrices' names without the prefix TRACED.
SmoothingFactors = Mapping[str, NDArray[np.float32]]
NO_SMOOTHING: SmoothingFactors = MappingProxyType({})
TRACED = "model."


def kept_in_fp32(config: ModelConfig) -> tuple[str, ...]:
    """Name suffixes of weights that stay fp32 unless their inputs are smoothed or in blocks.

    A post-norm encoder's queries, keys and values read the residual stream, in which a few large
    channels make int8 too coarse (:mod:`export.smooth_quant`).
    """
    stack = config.encoder
    if (
        config.kind == Kind.ENCODER
        and stack is not None
        and any(layer.norm_order == NormOrder.POST for layer in stack.layers)
    ):
        return (
            "mixer.qkv.weight",
            "global_tokens.query.weight",
            "global_tokens.key_value.weight",
        )
    return ()


def quantize_graph(
    model: ir.Model,
    scheme: PrecisionScheme,
    kept: tuple[str, ...] = (),
    smoothing_factors: SmoothingFactors = NO_SMOOTHING,
    second_moments: SecondMoments = NO_MOMENTS,
    *,
    is_tied: bool = False,
) -> None:
    """Quantizes matrices, embeddings and experts, in place.

    Args:
        kept: name suffixes of matrices that stay as they are or, if their format is in blocks, that
            count as sensitive.
        smoothing_factors: divisors of matrices' inputs. A matrix with divisors that becomes int8 by
            rows is quantized even if it is in ``kept``.
        second_moments: those of matrices' inputs, for 4-bit blocks.
        is_tied: whether the token embedding is also the output matrix, perhaps of another graph.
    """
    if scheme.matrices == WeightFormat.FLOAT:
        return
    model.graph.opset_imports[CONTRIB] = 1
    shared = _quantize_embeddings(model.graph, _format_of_embedding(scheme, is_tied=is_tied))
    for product in list(constant_matmuls(model.graph)):
        name = product.name.removeprefix(TRACED)
        factors = smoothing_factors.get(name)
        form = _format_of(product, scheme, kept, is_smoothed=factors is not None)
        if form == WeightFormat.FLOAT:
            continue
        tape = Tape()
        if product.name in shared and product.is_transposed:
            result = _tied(tape, product, *shared[product.name])
        elif form in _DYNAMIC:
            result = block_matmul.block_matmul(
                tape,
                product.x,
                product.name,
                product.weight(),
                _DYNAMIC[form],
                second_moments.get(name),
            )
        else:
            x, weight = product.x, product.weight()
            if factors is not None and form == WeightFormat.ROW_INT8:
                x = _divided(tape, x, product.name, factors)
                weight = weight * factors[:, None]
            result = MATMULS[form](tape, x, product.name, weight)
        _replace(model.graph, product.node, result, tape)
    _quantize_experts(model.graph, scheme)
    DeduplicateInitializersPass(size_limit=16)(model)
    RemoveUnusedNodesPass()(model)


def _format_of(
    product: ConstantMatMul, scheme: PrecisionScheme, kept: tuple[str, ...], *, is_smoothed: bool
) -> WeightFormat:
    """The format for a matrix; ``FLOAT`` if it is not quantized."""
    if product.name.endswith(ROUTERS) or any(part in product.name for part in SIGNAL):
        return WeightFormat.FLOAT
    if scheme.embedding == WeightFormat.FLOAT and _is_embedding(product.matrix):
        return WeightFormat.FLOAT
    form = scheme.matrices
    if product.name.endswith(OUTPUT):
        form = scheme.output
    elif product.name.endswith((SENSITIVE, *kept)):
        form = scheme.sensitive
    if form in _DYNAMIC and not can_have_blocks(product.num_inputs):
        form = WeightFormat.ROW_INT8
    is_fine = form in _DYNAMIC or (form == WeightFormat.ROW_INT8 and is_smoothed)
    return form if is_fine or not product.name.endswith(kept) else WeightFormat.FLOAT


def _format_of_embedding(scheme: PrecisionScheme, *, is_tied: bool) -> WeightFormat:
    """The format for embeddings: if tied, the same in all graphs, so that they can share memory."""
    return scheme.output if is_tied and scheme.embedding != WeightFormat.FLOAT else scheme.embedding


def _divided(tape: Tape, x: ir.Value, name: str, smoothing_factor: NDArray[np.float32]) -> ir.Value:
    factors = constant(tape, f"{name}.factors", 1 / smoothing_factor)
    result = tape.op("Mul", [x, factors])
    result.type, result.shape = x.type, x.shape
    return result


def _quantize_experts(graph: ir.Graph, scheme: PrecisionScheme) -> None:
    if scheme.experts == WeightFormat.FLOAT:
        return
    for node in list(graph):
        if is_mixture(node):
            tape = Tape()
            _replace(graph, node, quantized_mixture(tape, node, scheme.experts), tape)


# Quantized token embeddings and their stored integers, by name.
Shared = dict[str, tuple[Int8Rows | Blocks, ir.Value]]


def _quantize_embeddings(graph: ir.Graph, form: WeightFormat) -> Shared:
    """Stores each token embedding in this format; returns them for tied output matrices."""
    shared: Shared = {}
    if form == WeightFormat.FLOAT:
        return shared
    for node in list(graph):
        matrix = node.inputs[0] if node.inputs else None
        if matrix is None or not _is_lookup(node):
            continue
        name, tape = matrix.name or "embedding", Tape()
        if name not in shared:
            quantized = _quantized_rows(name, array_of(matrix), form)
            shared[name] = quantized, _stored(tape, name, quantized)
        quantized, stored = shared[name]
        ids = node.inputs[1]
        if ids is None:
            continue
        if isinstance(quantized, Blocks):
            rows = block_matmul.gather_rows(tape, ids, name, stored, quantized)
        else:
            rows = gather_rows(tape, ids, quantized, stored)
        _replace(graph, node, rows, tape)
    return shared


def _quantized_rows(name: str, matrix: Weight, form: WeightFormat) -> Int8Rows | Blocks:
    """``matrix [rows, size]``, quantized with a scale per row or per block of a row."""
    if form in _DYNAMIC and can_have_blocks(matrix.shape[1]):
        return block_matmul.quantize_table(matrix, _DYNAMIC[form])
    return Int8Rows.of(name, matrix)


def _stored(tape: Tape, name: str, rows: Int8Rows | Blocks) -> ir.Value:
    if isinstance(rows, Int8Rows):
        return constant(tape, f"{name}.int8", rows.around_128)
    return constant(tape, f"{name}.int{rows.bits}", pack_bits(rows.numbers, rows.bits))


def _tied(
    tape: Tape, product: ConstantMatMul, rows: Int8Rows | Blocks, stored: ir.Value
) -> ir.Value:
    if isinstance(rows, Blocks):
        return block_matmul.multiply(tape, product.x, product.name, stored, rows)
    return tied_int8(tape, product.x, rows, stored)


def _is_lookup(node: ir.Node) -> bool:
    """Whether ``node`` looks up rows of a constant matrix by token id."""
    if node.domain or node.op_type != "Gather" or len(node.inputs) != 2:
        return False
    matrix, ids = node.inputs
    axis = node.attributes["axis"].value if "axis" in node.attributes else 0
    return (
        axis == 0
        and matrix is not None
        and is_matrix(matrix)
        and ids is not None
        and ids.name == TOKEN_IDS
    )


def _is_embedding(matrix: ir.Value) -> bool:
    return any(_is_lookup(use.node) for use in matrix.uses())


def _replace(graph: ir.Graph, node: ir.Node, result: ir.Value, tape: Tape) -> None:
    """Replaces ``node`` by the nodes of ``tape``, and its output by ``result``."""
    for value in tape.initializers:
        held = graph.initializers.get(value.name or "")
        if held is None:
            graph.register_initializer(value)
        else:  # layers share the matrix
            ir.convenience.replace_all_uses_with(value, held)
    graph.insert_before(node, tape.nodes)
    name = node.outputs[0].name
    ir.convenience.replace_all_uses_with(node.outputs[0], result, replace_graph_outputs=True)
    result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
    graph.remove(node, safe=True)
    result.name = name
