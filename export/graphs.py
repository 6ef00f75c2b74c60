"""Traces a model to ONNX, one graph after another."""

import contextlib
import gc
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx_ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor

from export.graph_files import save_graph
from export.graph_modules import wrapper_of
from export.offload import num_bytes
from export.signatures import signatures
from model.bundle import Dtype, GraphSpec, Shape
from model.config import ModelConfig, WaveformConfig
from model.fused import FusedKernels
from model.transformer import Transformer, from_weights

OPSET = 23
DTYPES = {
    Dtype.FLOAT32: torch.float32,
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.INT64: torch.int64,
    Dtype.INT32: torch.int32,
    Dtype.INT16: torch.int16,
    Dtype.INT8: torch.int8,
    Dtype.UINT8: torch.uint8,
}
# Sizes of the example inputs for tracing: all different and none 1, so that none becomes static.
EXAMPLE_SIZES = {"batch": 2, "length": 3, "source_length": 5, "chosen": 4, "vectors": 6}
EXAMPLE_SIZES |= {"words": 8, "labels": 9}  # of spans
EXAMPLE_CAPACITY = 7
EXAMPLE_HOPS = 10  # of speech
COLLECTED_BYTES = 1 << 26  # smaller weights may wait for the next automatic collection


def _example(dtype: Dtype, shape: Shape, sizes: dict[str, int]) -> Tensor:
    dimensions = [sizes[d] if isinstance(d, str) else d for d in shape]
    return torch.ones(dimensions, dtype=DTYPES[dtype])


def _example_sizes(waveform: WaveformConfig | None) -> dict[str, int]:
    """:data:`EXAMPLE_SIZES`, and samples for several frames."""
    if waveform is None:
        return EXAMPLE_SIZES
    return EXAMPLE_SIZES | {"samples": waveform.frame_size + EXAMPLE_HOPS * waveform.hop_size}


def _dynamic(shape: Shape) -> dict[int, object]:
    auto = torch.export.Dim.DYNAMIC
    return {axis: auto for axis, size in enumerate(shape) if isinstance(size, str)}


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses the garbage collector: tracing keeps its objects, and full collections visit all."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter, which reports progress by logging, warnings and standard output."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def trace(name: str, graph: GraphSpec, model: Transformer) -> onnx_ir.Model:
    """``model`` as the ONNX graph ``name``, with the input and output names of ``graph``."""
    shapes: list[Shape] = [spec.shape for spec in graph.inputs]
    sizes = _example_sizes(model.config.waveform)
    example = [_example(spec.dtype, spec.shape, sizes) for spec in graph.inputs]
    for state in graph.states:
        shape = ("batch", *state.shape)
        shapes.append(shape)
        example.append(_example(state.dtype, shape, EXAMPLE_SIZES | {"length": EXAMPLE_CAPACITY}))
    # forward takes named parameters and *rest: dynamic_shapes needs the same nesting.
    dynamic = [_dynamic(shape) for shape in shapes]
    wrapper = wrapper_of(name, graph, model).eval()
    num_named = min(2 if name == "encode" else 1, len(dynamic))
    nested = (*dynamic[:num_named], tuple(dynamic[num_named:]))
    if len(dynamic) == num_named:
        nested = tuple(dynamic)
    with _quiet(), _collector_paused(), torch.no_grad():
        program = torch.onnx.export(
            wrapper,
            tuple(example),
            dynamo=True,
            dynamic_shapes=nested,
            input_names=[spec.name for spec in graph.inputs] + [s.input for s in graph.states],
            output_names=[spec.name for spec in graph.outputs] + [s.output for s in graph.states],
            opset_version=OPSET,
            optimize=True,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    # The tracer's metadata contain paths of this machine.
    ClearMetadataAndDocStringPass()(program.model)
    return program.model


def export_graphs(
    config: ModelConfig, weights: dict[str, Tensor], directory: Path
) -> dict[str, GraphSpec]:
    """Writes every fp32 graph of ``config`` into ``directory`` and returns their signatures.

    Weights go to ``<graph>.onnx.data`` next to each graph.
    """
    model = from_weights(config, weights, FusedKernels())
    graphs = signatures(config)
    for name, graph in graphs.items():
        traced = trace(name, graph, model)
        save_graph(traced, directory / graph.file)
        # The exporter's rewrite rules keep a reference to their last graph: free its weights.
        for value in traced.graph.initializers.values():
            value.const_value = None
    del model
    if num_bytes(weights) >= COLLECTED_BYTES:
        gc.collect()  # the tracer leaves cycles that keep the weights
    return graphs
