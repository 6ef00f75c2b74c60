"""Converts the fp32 graphs of a bundle to its precision."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from export.gptq import NO_MOMENTS, SecondMoments
from export.graph_files import load_graph, save_graph
from export.half_precision import convert_floats, emulate_bf16_on_cpu, store_weights_as
from export.precision_schemes import PrecisionScheme
from export.quantize import NO_SMOOTHING, SmoothingFactors, kept_in_fp32, quantize_graph
from export.signatures import Signatures, with_float_states
from model.bundle import Dtype
from model.config import ModelConfig


def apply_scheme(
    config: ModelConfig,
    scheme: PrecisionScheme,
    graphs: Signatures,
    directory: Path,
    smoothing_factors: SmoothingFactors = NO_SMOOTHING,
    fp32_folder: Path | None = None,
    second_moments: SecondMoments = NO_MOMENTS,
) -> Signatures:
    """Rewrites the fp32 graphs in ``directory`` and returns their new signatures.

    Args:
        smoothing_factors: divisors of int8 matrices' inputs, from
            :func:`export.smooth_quant.residual_smoothing_factors`.
        fp32_folder: a folder to which the files of converted graphs are moved.
        second_moments: those of 4-bit matrices' inputs, from
            :func:`export.second_moments.measure_second_moments`.
    """
    if scheme.is_plain:
        return graphs
    changed = with_float_states(graphs, scheme.computed)
    kept = kept_in_fp32(config)
    for graph in changed.values():
        model = load_graph(directory / graph.file)
        quantize_graph(
            model,
            scheme,
            kept,
            smoothing_factors,
            second_moments,
            is_tied=config.head.tied,
        )
        if scheme.computed != Dtype.FLOAT32:
            outputs = {spec.name for spec in graph.outputs if spec.dtype == Dtype.FLOAT32}
            convert_floats(model, scheme.computed, frozenset(outputs))
        elif scheme.stored != Dtype.FLOAT32:
            store_weights_as(model, scheme.stored)
        save_graph(model, directory / graph.file, fp32_folder)
    return changed


@contextmanager
def cpu_runnable(scheme: PrecisionScheme, graphs: Signatures, directory: Path) -> Iterator[Path]:
    """A folder with equivalents of the graphs in ``directory`` that a CPU can run."""
    if scheme.computed != Dtype.BFLOAT16:
        yield directory
        return
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".check-") as name:
        for graph in graphs.values():
            model = load_graph(directory / graph.file)
            emulate_bf16_on_cpu(model)
            save_graph(model, Path(name) / graph.file)
        yield Path(name)
