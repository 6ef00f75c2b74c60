"""Builds ONNX graphs that sample tokens on the logits' device.

A graph returns a token only if it is certain to be the host's token. Its arithmetic may differ
from the host's in the last bits (another ``exp``, another order of sums), so each deciding
comparison is made at both ends of an interval that contains either result. Where the two ends
disagree, the row is left to the host, which samples it with the same uniform number. So the
tokens do not depend on how the device rounds.

Every operator has a CUDA kernel: docs/decisions/0085-sampling.md.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper

from server.engine.gpu.sampler_inputs import (
    EDIT_IDS,
    EDIT_VALUES,
    GATHERED,
    LOGITS,
    NUM_PARAMETERS,
    PARAMETERS,
    ROWS,
    SUPPRESSED_LOGIT,
    TOKENS,
    UNDECIDED,
    LogitsSpec,
    SamplerVariant,
    SamplingMethod,
)
from server.engine.gpu.sampler_methods import METHODS, is_finite
from server.engine.gpu.sampler_nodes import Nodes
from server.runtime.contract import TARGETS, TOP_TOKENS


def build(variant: SamplerVariant, spec: LogitsSpec) -> onnx.ModelProto:
    """Builds a graph that samples one token for each of ``n`` rows.

    Inputs:
        - ``logits [batch, vocabulary]``
        - ``rows [n]`` int64, the rows to sample, if the variant gathers rows
        - ``parameters [n, 5]`` float64, unless greedy; columns as in :mod:`.sampler_inputs`
        - with edits, ``edit_ids [n, m]`` int64 (an id may repeat only with the same edits) and
          ``edit_values [n, 3, m]`` float32: a number added to the logit, the repetition penalty
          applied next, and a number added last

    Output: ``tokens [n]`` int64, :data:`UNDECIDED` where the host has to sample.
    """
    nodes = Nodes()
    logits = _logits(nodes, spec, gathers_rows=variant.gathers_rows)
    certain: list[str] = []
    if variant.has_edits:
        certain.append(is_finite(nodes, logits))  # an edit could hide a NaN
        logits = _edited(nodes, logits)
    selection = METHODS[variant.method](nodes, logits, spec, not variant.has_edits)
    undecided = nodes.constant(np.int64(UNDECIDED))
    is_certain = nodes.all_of([*certain, *selection.certain])
    token = nodes.add("Where", is_certain, selection.token, undecided)
    nodes.add("Reshape", token, nodes.constant(np.array([-1])), output=TOKENS)
    return nodes.model(_inputs(variant, spec), TOKENS, TensorProto.INT64, ["n"])


def build_row_gather(spec: LogitsSpec) -> onnx.ModelProto:
    """Builds a graph that copies the rows ``rows`` to ``gathered [n, vocabulary]`` float32."""
    nodes = Nodes()
    nodes.add("Identity", _logits(nodes, spec, gathers_rows=True), output=GATHERED)
    inputs = _inputs(SamplerVariant(SamplingMethod.GREEDY, gathers_rows=True), spec)
    return nodes.model(inputs, GATHERED, TensorProto.FLOAT, ["n", spec.vocabulary])


def build_top_tokens(
    spec: LogitsSpec, count: int, *, gathers_rows: bool, has_targets: bool
) -> onnx.ModelProto:
    """Builds a graph that finds the ``count`` likeliest tokens of ``n`` rows.

    Inputs: ``logits`` and ``rows`` as for :func:`build`; :data:`server.runtime.contract.TARGETS`
    with ``has_targets``. Output: :data:`server.runtime.contract.TOP_TOKENS`.
    """
    nodes = Nodes()
    logits = _logits(nodes, spec, gathers_rows=gathers_rows)
    values, ids = nodes.top_k(logits, count)
    differences = nodes.add("Sub", logits, nodes.slice(values, 0, 1))
    total = nodes.reduce("ReduceSum", nodes.add("Exp", differences))
    columns = [values, nodes.cast(ids, TensorProto.FLOAT), total]
    inputs = _inputs(SamplerVariant(SamplingMethod.GREEDY, gathers_rows=gathers_rows), spec)
    if has_targets:
        columns.append(nodes.gather(logits, nodes.reshape(TARGETS, -1, 1)))
        inputs.append(helper.make_tensor_value_info(TARGETS, TensorProto.INT64, ["n"]))
    nodes.add("Concat", *columns, axis=1, output=TOP_TOKENS)
    width = 2 * count + (2 if has_targets else 1)
    return nodes.model(inputs, TOP_TOKENS, TensorProto.FLOAT, ["n", width])


def _inputs(variant: SamplerVariant, spec: LogitsSpec) -> list[onnx.ValueInfoProto]:
    value = helper.make_tensor_value_info
    inputs = [value(LOGITS, spec.element_type, ["batch", spec.vocabulary])]
    if variant.gathers_rows:
        inputs.append(value(ROWS, TensorProto.INT64, ["n"]))
    if variant.method != SamplingMethod.GREEDY:
        inputs.append(value(PARAMETERS, TensorProto.DOUBLE, ["n", NUM_PARAMETERS]))
    if variant.has_edits:
        inputs.append(value(EDIT_IDS, TensorProto.INT64, ["n", "m"]))
        inputs.append(value(EDIT_VALUES, TensorProto.FLOAT, ["n", 3, "m"]))
    return inputs


def _logits(nodes: Nodes, spec: LogitsSpec, *, gathers_rows: bool) -> str:
    """Adds the logits of the sampled rows in float32, with tokens suppressed as on the host."""
    logits = LOGITS
    if gathers_rows:
        logits = nodes.add("Gather", logits, ROWS, axis=0)
    if spec.element_type != TensorProto.FLOAT:
        logits = nodes.cast(logits, TensorProto.FLOAT)
    if spec.suppressed:
        mask = np.zeros((1, spec.vocabulary), bool)
        mask[:, list(spec.suppressed)] = True
        suppressed = nodes.constant(np.float32(SUPPRESSED_LOGIT))
        logits = nodes.add("Where", nodes.constant(mask), suppressed, logits)
    return logits


def _edited(nodes: Nodes, logits: str) -> str:
    """Applies the edits of the logits processors, in their order.

    The host divides in IEEE float32; dividing in float64 and rounding gives the same bits.
    """
    added, penalty, added_last = (
        nodes.reshape(nodes.slice(EDIT_VALUES, column, column + 1), 0, -1) for column in range(3)
    )
    value = nodes.add("Add", nodes.gather(logits, EDIT_IDS), added)
    in_double = (nodes.cast(number, TensorProto.DOUBLE) for number in (value, penalty))
    divided = nodes.cast(nodes.add("Div", *in_double), TensorProto.FLOAT)
    is_negative = nodes.add("Less", value, nodes.constant(np.float32(0)))
    value = nodes.add("Where", is_negative, nodes.add("Mul", value, penalty), divided)
    value = nodes.add("Add", value, added_last)
    return nodes.add("ScatterElements", logits, EDIT_IDS, value, axis=1)
