"""Small fp32 graphs shared by several tests."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from export.graphs import export_graphs
from export.parity import compare_fp32
from export.parity_reference import ParityReference
from export.signatures import Signatures
from tests.architectures import ARCHITECTURES, checkpoint

# One per model kind. SSRU has recurrent states, and an output bias with tied embeddings.
NAMES = ("llama", "ssru", "bert")
# All architectures, as parameters of a test; only those above are fast enough for `make test`.
ALL_NAMES = [
    name if name in NAMES else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES
]


@dataclass(frozen=True)
class Exported:
    """fp32 graphs in a folder, and the eager module's reference outputs."""

    name: str
    directory: Path
    graphs: Signatures
    reference: ParityReference


def export_fp32(name: str, directory: Path) -> Exported:
    """Exports the random model ``name`` of ``tests.architectures`` to ``directory``."""
    source = checkpoint(name)
    graphs = export_graphs(source.config, source.weights, directory)
    return Exported(name, directory, graphs, compare_fp32(source, directory, graphs))
