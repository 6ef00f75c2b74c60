"""Prints how much memory the weights of bundles take on this CPU.

    python -m scripts.weight_memory bundles/NAME/1...

Loads every graph that runs from the start, with the native kernels of this CPU. Constants that
graphs share count once; those that products read have the format that the kernels multiply.
"""

import sys
from pathlib import Path

from model.bundle import Manifest
from model.bundle_files import read_manifest
from server.runtime.kernels.rewrite import load_rewritten
from server.runtime.memory import Array

USAGE = "usage: python -m scripts.weight_memory BUNDLE..."


def memory_bytes(directory: Path, manifest: Manifest) -> int:
    """Bytes of all constants of the graphs ``encode`` and ``decode``."""
    total = 0
    packed: dict[int, Array] = {}
    for name, graph in manifest.graphs.items():
        if name not in ("encode", "decode"):
            continue
        takes_candidates = name == "decode" and manifest.shortlist is not None
        rewritten = load_rewritten(directory / graph.file, takes_candidates=takes_candidates)
        if rewritten is None:
            raise SystemExit(f"{directory}: this CPU has no kernels for {graph.file}")
        total += rewritten.unpacked_bytes
        packed |= {id(array): array for array in rewritten.packed.values()}
    return total + sum(array.nbytes for array in packed.values())


def main() -> None:
    """Prints a line for each bundle: its size in memory and of its files."""
    if not sys.argv[1:]:
        raise SystemExit(USAGE)
    for argument in sys.argv[1:]:
        directory = Path(argument).absolute()
        manifest = read_manifest(directory)
        files = sum(path.stat().st_size for path in directory.glob("*.data"))
        in_memory = memory_bytes(directory, manifest)
        print(
            f"{manifest.label}, {manifest.precision}: {in_memory / 1e6:.1f} MB in memory, "
            f"{files / 1e6:.1f} MB in files"
        )


if __name__ == "__main__":
    main()
