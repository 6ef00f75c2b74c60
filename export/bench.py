"""A worker process for many exports, which loads PyTorch once: ``python -m export.bench``.

It reads one JSON object per line and answers with one, like ``python -m server.bench``.
``{"op": "export", "source", "out", "precision", "device", "kv_cache"}`` writes the bundle ``out``
(``DIR/NAME``), even if it misses the limits of fidelity; the answer has its folder, its parity and
the duration in seconds.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from export.bundle_writer import write_bundle
from export.errors import ExportError
from export.sources import load_checkpoint
from model.bundle import Device, KvCache, Precision
from model.bundle_files import read_manifest, read_parity


def export(message: dict[str, Any]) -> dict[str, Any]:
    """Exports one bundle and returns the answer."""
    started = time.monotonic()
    out = Path(message["out"]).absolute()
    path = write_bundle(
        load_checkpoint(message["source"]),
        out.parent,
        name=out.name,
        precision=Precision(message["precision"]),
        device=Device(message["device"]),
        kv_cache=KvCache(message["kv_cache"]),
        keep_weights=False,
        accept_loss=True,
    )
    decode = read_manifest(path).graphs.get("decode")
    return {
        "path": str(path),
        "seconds": round(time.monotonic() - started, 1),
        "parity": msgspec.to_builtins(read_parity(path)),
        "cache_bytes_per_token": 0 if decode is None else decode.cache_bytes_per_token,
    }


def main() -> None:
    """Answers until the input ends. All other output goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        try:
            answer = export(json.loads(line))
        except (ExportError, OSError, KeyError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
