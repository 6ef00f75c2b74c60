"""Records operators and sizes of a passing family: its row in ``docs/families.md``."""

import json
import shutil
from collections import Counter
from pathlib import Path

import msgspec
import onnx_ir

from export.apply_scheme import apply_scheme
from export.graph_files import load_graph
from export.parity import min_cosine
from export.parity_reference import ParityReference
from export.precision_schemes import scheme_for
from model.bundle import Device, GraphSpec, Precision
from model.config import ModelConfig
from scripts.families import ROWS, Family

# Lowest cosine to transformers over rows, by precision (bf16 has the size of fp16). Random weights
# lose more in 4 bits than real exports, whose activations are smoothed.
COSINES = {Precision.FP16: 0.999, Precision.INT8: 0.95, Precision.INT4: 0.7}
_recorded: dict[str, Family] = {}  # by this process


def sizes_of(
    config: ModelConfig, reference: ParityReference, directory: Path, graphs: dict[str, GraphSpec]
) -> dict[str, int]:
    """Bytes of the fp32 graphs in ``directory`` and of their versions in other precisions."""
    sizes = {str(Precision.FP32): _graph_bytes(directory)}
    for precision, floor in COSINES.items():
        scheme, folder = scheme_for(precision, Device.CPU, config.kind), directory / precision
        folder.mkdir()
        for file in directory.glob("*.onnx*"):
            shutil.copy(file, folder)
        changed = apply_scheme(config, scheme, graphs, folder)
        min_cosine(reference, folder, changed, floor)
        sizes[str(precision)] = _graph_bytes(folder)
    return sizes


def operators_of(directory: Path, graphs: dict[str, GraphSpec]) -> tuple[str, ...]:
    """Operators of attention and experts: ONNX Runtime's fused ones or plain ONNX ones."""
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


def record_family(row: Family) -> Family:
    """Merges ``row`` with this process's earlier rows of the family and writes the result."""
    earlier = _recorded.get(row.family)
    if earlier is not None:
        row = msgspec.structs.replace(
            row,
            operators=tuple(sorted({*row.operators, *earlier.operators})),
            max_absolute_error=max(row.max_absolute_error, earlier.max_absolute_error),
            tokens_compared=row.tokens_compared + earlier.tokens_compared,
            tokens_equal=row.tokens_equal + earlier.tokens_equal,
            tokens_tied=row.tokens_tied + earlier.tokens_tied,
            bytes_by_precision=earlier.bytes_by_precision | row.bytes_by_precision,
        )
    _recorded[row.family] = row
    ROWS.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in row.family.lower())
    (ROWS / f"{name}.json").write_text(json.dumps(msgspec.to_builtins(row), indent=2) + "\n")
    return row
