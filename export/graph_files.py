"""ONNX files: the graph in one file, its weights in another beside it."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from model.bundle import GraphSpec

# Smaller tensors stay in the graph's file, where shape inference can read them.
EXTERNAL_THRESHOLD_BYTES = 1024


def load_graph(path: Path) -> ir.Model:
    """Loads the graph in ``path``. Its weights are read lazily from their file."""
    return ir.load(path)


def save_graph(model: ir.Model, path: Path, kept: Path | None = None) -> None:
    """Writes ``path`` and ``<path>.data``, and replaces existing ones.

    ``model`` may still read the old files: they are unlinked, not overwritten.

    Args:
        kept: a folder to which the old files are moved.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".graph-") as name:
        directory = Path(name)
        ir.save(
            model,
            directory / path.name,
            external_data=f"{path.name}.data",
            size_threshold_bytes=EXTERNAL_THRESHOLD_BYTES,
        )
        for file in (path, data_file(path)):
            if kept is not None and file.exists():
                kept.mkdir(exist_ok=True)
                file.replace(kept / file.name)
            file.unlink(missing_ok=True)
        for file in directory.iterdir():
            file.replace(path.parent / file.name)


def copy_graphs(graphs: Mapping[str, GraphSpec], source: Path, target: Path) -> None:
    """Copies the files of ``graphs`` from the folder ``source`` to the new folder ``target``."""
    target.mkdir()
    for graph in graphs.values():
        for file in (source / graph.file, data_file(source / graph.file)):
            if file.exists():
                shutil.copyfile(file, target / file.name)


def data_file(path: Path) -> Path:
    """The file with the weights of the graph ``path``."""
    return path.with_name(f"{path.name}.data")
