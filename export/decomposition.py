"""Spares the exporter the second run of a program, which takes half of the time of a trace.

``torch.onnx.export`` runs every program again to decompose the operators that it cannot translate.
Those of this project's models are few, and translated here.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from onnxscript import opset23 as op
from torch import nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.onnx import OnnxExporterError, ONNXProgram

OPSET = 23
Table = dict[Any, Callable[..., Any]]


def _cast(x: Any, dtype: int) -> Any:
    return op.Identity(x) if x.dtype == dtype else op.Cast(x, to=dtype)


def _and(x: Any, y: Any) -> Any:
    return op.And(x, y)


def _or(x: Any, y: Any) -> Any:
    return op.Or(x, y)


# What models write as ``x.to(dtype)``, and as ``x & y`` and ``x | y`` of booleans.
_TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.to.dtype: _cast,
    torch.ops.aten.__and__.Tensor: _and,
    torch.ops.aten.__or__.Tensor: _or,
}


def to_onnx(module: nn.Module, example: tuple[Any, ...], **options: Any) -> ONNXProgram:
    """``module`` as a program of ONNX with the operators of ``OPSET``.

    Args:
        example: the inputs to trace with.
        options: of ``torch.onnx.export``.

    Raises:
        OnnxExporterError: the exporter cannot translate an operator.
    """

    def convert() -> ONNXProgram:
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            opset_version=OPSET,
            custom_translation_table=_TRANSLATIONS,
            verbose=False,
            **options,
        )
        if program is None:
            raise RuntimeError("torch.onnx.export returned nothing")
        return program

    try:
        with _decomposed_if_needed():
            return convert()
    except OnnxExporterError:  # an operator that the table lacks
        return convert()


@contextlib.contextmanager
def _decomposed_if_needed() -> Iterator[None]:
    """Programs without operators that have to be decomposed stay as they are."""
    decompose = ExportedProgram.run_decompositions

    def run(program: ExportedProgram, table: Table | None = None) -> ExportedProgram:
        if table is not None and not _has_effect(program, table):
            return program
        decomposed: ExportedProgram = decompose(program, table)
        return decomposed

    with mock.patch.object(ExportedProgram, "run_decompositions", run):
        yield


def _has_effect(program: ExportedProgram, table: Table) -> bool:
    """Whether decomposing by ``table`` changes ``program``.

    It also replaces operators that change their inputs.
    """
    operators = {node.target for node in program.graph.nodes if isinstance(node.target, OpOverload)}
    return (
        len(list(program.graph_module.modules())) > 1  # it has branches or loops
        or not operators.isdisjoint(table)
        or any(operator._schema.is_mutable for operator in operators)
    )
