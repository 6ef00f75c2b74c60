"""``python -m scripts.export_defaults NAME …``: exports models to ``bundles/``, as int8.

A bundle that exists is kept. Two processes take the models in turn: they share what they import,
which takes some six seconds of processor time for each export alone.
"""

import argparse
import multiprocessing
import sys
from functools import partial
from pathlib import Path

from export.__main__ import app
from model.bundle import MANIFEST_FILE

BUNDLES = Path(__file__).parents[1] / "bundles"
AT_A_TIME = 2


def main() -> int:
    """Returns an exit status: 1 if an export failed. The others are exported all the same."""
    parser = argparse.ArgumentParser(description="Exports models. A bundle that exists is kept.")
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--out", type=Path, default=BUNDLES, help="Folder of the bundles.")
    parser.add_argument("--precision", default="int8")
    options = parser.parse_args()
    missing = [
        name for name in options.names if not (options.out / name / "1" / MANIFEST_FILE).exists()
    ]
    if not missing:
        return 0
    export = partial(export_one, out=options.out, precision=options.precision)
    with multiprocessing.get_context("fork").Pool(AT_A_TIME) as processes:
        statuses = processes.map(export, missing, chunksize=1)
    return int(any(statuses))


def export_one(name: str, out: Path, precision: str) -> int:
    """Exports one model, and returns an exit status."""
    arguments = [name, "--out", str(out / name), "--precision", precision]
    return int(app(arguments, standalone_mode=False) or 0)


if __name__ == "__main__":
    sys.exit(main())
