"""Prints how much memory the weights of bundles take on this CPU.

    python -m scripts.weight_memory bundles/NAME/1...

Loads every graph that runs from the start, with the native kernels of this CPU. Constants that
graphs share count once; those that products read have the format that the kernels multiply.
"""

import argparse
from pathlib import Path

from model.bundle import BundleError, Manifest
from model.bundle_files import read_manifest
from server.runtime.kernels.rewrite import load_rewritten
from server.runtime.memory import Array


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
    parser = argparse.ArgumentParser(description="Memory of the weights of bundles, on this CPU.")
    parser.add_argument("bundles", nargs="+", type=Path, metavar="bundles/NAME/1")
    for given in parser.parse_args().bundles:
        directory = given.absolute()
        try:
            manifest = read_manifest(directory)
        except BundleError as error:
            raise SystemExit(f"{given}: {error}") from error
        files = sum(path.stat().st_size for path in directory.glob("*.data"))
        in_memory = memory_bytes(directory, manifest)
        print(
            f"{manifest.label}, {manifest.precision}: {in_memory / 1e6:.1f} MB in memory, "
            f"{files / 1e6:.1f} MB in files"
        )


if __name__ == "__main__":
    main()
