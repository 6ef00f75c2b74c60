"""``python -m scripts.export_defaults NAME …``: exports models to ``bundles/`` as int8.

A bundle that exists is kept. Two processes take the models in turn: they share what they import,
which takes some six seconds of processor time for each export alone.
"""

import multiprocessing
import sys
from pathlib import Path

from export.__main__ import app
from model.bundle import MANIFEST_FILE

BUNDLES = Path(__file__).parents[1] / "bundles"
AT_A_TIME = 2


def main(names: list[str]) -> int:
    """Returns an exit status: 1 if an export failed. The others are exported all the same."""
    missing = [name for name in names if not (BUNDLES / name / "1" / MANIFEST_FILE).exists()]
    if not missing:
        return 0
    with multiprocessing.get_context("fork").Pool(AT_A_TIME) as processes:
        statuses = processes.map(export, missing, chunksize=1)
    return int(any(statuses))


def export(name: str) -> int:
    """Exports one model, and returns an exit status."""
    arguments = [name, "--out", str(BUNDLES / name), "--precision", "int8"]
    return int(app(arguments, standalone_mode=False) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
