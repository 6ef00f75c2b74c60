"""Records operators and sizes of a passing family: its row in ``docs/families.md``."""

import json
import shutil
from collections import Counter
from pathlib import Path

import msgspec
import onnx_ir

from export.apply_recipe import apply_recipe
from export.graph_files import load_graph
from export.parity import ParityReference, min_cosine
from export.recipes import RECIPES
from model.bundle import Device, GraphSpec, Precision
from model.config import ModelConfig
from scripts.families import ROWS, Family

# Of other precisions (bf16 is as large as fp16): the cosine to transformers of the worst row.
# Random weights are harder to hold in 4 bits than those of an export, whose activations are even.
COSINES = {Precision.FP16: 0.999, Precision.INT8: 0.95, Precision.INT4: 0.8}
_seen: dict[str, Family] = {}  # what this process has noted


def sizes_of(
    config: ModelConfig, reference: ParityReference, directory: Path, graphs: dict[str, GraphSpec]
) -> dict[str, int]:
    """Bytes of the graphs in ``directory``, fp32, and of what each precision makes of them."""
    sizes = {str(Precision.FP32): _graph_bytes(directory)}
    for precision, floor in COSINES.items():
        recipe, folder = RECIPES[precision, Device.CPU], directory / precision
        folder.mkdir()
        for file in directory.glob("*.onnx*"):
            shutil.copy(file, folder)
        changed = apply_recipe(config, recipe, graphs, folder)
        min_cosine(reference, folder, changed, floor)
        sizes[str(precision)] = _graph_bytes(folder)
    return sizes


def operators_of(directory: Path, graphs: dict[str, GraphSpec]) -> tuple[str, ...]:
    """Those that attention and experts became: ONNX Runtime's own, or plain ones."""
    used: Counter[str] = Counter()
    for graph in graphs.values():
        model: onnx_ir.Model = load_graph(directory / graph.file)
        used.update(
            node.op_type
            for node in model.graph
            if node.domain == "com.microsoft" or node.op_type in ("Attention", "Softmax")
        )
    return tuple(sorted(used))


def _graph_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.onnx*"))


def note(row: Family) -> Family:
    """Adds ``row`` to what this process knows of its family, and writes that."""
    known = _seen.get(row.family)
    if known is not None:
        row = msgspec.structs.replace(
            row,
            operators=tuple(sorted({*row.operators, *known.operators})),
            max_absolute_error=max(row.max_absolute_error, known.max_absolute_error),
            tokens_compared=row.tokens_compared + known.tokens_compared,
            tokens_equal=row.tokens_equal + known.tokens_equal,
            tokens_tied=row.tokens_tied + known.tokens_tied,
            bytes_by_precision=known.bytes_by_precision | row.bytes_by_precision,
        )
    _seen[row.family] = row
    ROWS.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in row.family.lower())
    (ROWS / f"{name}.json").write_text(json.dumps(msgspec.to_builtins(row), indent=2) + "\n")
    return row
