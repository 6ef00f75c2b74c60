"""ONNX files: the graph in one, its weights in another next to it."""

from pathlib import Path

import onnx_ir as ir

# Smaller tensors stay in the graph's own file, where shape inference can read them.
EXTERNAL_THRESHOLD_BYTES = 1024


def load_graph(path: Path) -> ir.Model:
    """The graph in ``path``, with its weights in memory, so that the files may be rewritten."""
    model = ir.load(path)
    ir.external_data.load_to_model(model)
    return model


def save_graph(model: ir.Model, path: Path) -> None:
    """Writes ``path`` and ``<path>.data``, in place of those that are there."""
    ir.save(
        model,
        path,
        external_data=f"{path.name}.data",
        size_threshold_bytes=EXTERNAL_THRESHOLD_BYTES,
    )
