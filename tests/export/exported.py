"""Small fp32 graphs that several tests start from."""

from dataclasses import dataclass
from pathlib import Path

from export.graphs import export_graphs
from export.parity import ParityReference, compare_fp32
from export.signatures import Signatures
from tests.architectures import checkpoint

# One of each kind; SSRU has recurrent states and a bias behind a tied matrix.
NAMES = ("llama", "ssru", "bert")


@dataclass(frozen=True)
class Exported:
    """fp32 graphs in a folder, and what the eager module says of them."""

    name: str
    directory: Path
    graphs: Signatures
    reference: ParityReference


def export_fp32(name: str, directory: Path) -> Exported:
    """The random model ``name`` of ``tests.architectures`` as graphs in ``directory``."""
    source = checkpoint(name)
    graphs = export_graphs(source.config, source.weights, directory)
    return Exported(name, directory, graphs, compare_fp32(source, directory, graphs))
