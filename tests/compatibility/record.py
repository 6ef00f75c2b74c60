"""Records the current server's responses: ``python -m tests.compatibility.record``."""

import json
import tempfile
from collections import Counter
from pathlib import Path

from tests.compatibility import (
    encoder_calls,
    generation_calls,
    guarded_calls,
    refused_encoders,
    refused_generation,
)
from tests.compatibility.server import RECORDING, guarded_server, open_server, unpack
from tests.compatibility.wire import Call, Caller, Json

NUM_LANES = 2


def open_calls() -> list[Call]:
    """Calls to the server without access control."""
    modules = (generation_calls, encoder_calls, refused_generation, refused_encoders)
    return [call for module in modules for call in module.calls()]


def main() -> None:
    """Writes the recording."""
    recorded: list[Json] = []
    with tempfile.TemporaryDirectory() as folder:
        bundles = unpack(Path(folder) / "archive")
        with open_server(bundles, NUM_LANES) as targets, Caller(targets) as caller:
            recorded += [call.to_json() | caller.send(call) for call in open_calls()]
        with guarded_server(bundles, Path(folder)) as targets, Caller(targets) as caller:
            recorded += [call.to_json() | caller.send(call) for call in guarded_calls.calls()]
    names = Counter(line["name"] for line in recorded)
    twice = [name for name, count in names.items() if count > 1]
    assert not twice, f"names must be unique: {twice}"
    lines = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in recorded]
    RECORDING.write_text("\n".join(lines) + "\n", encoding="utf-8")
    codes = Counter(line["code"] for line in recorded)
    print(f"{len(lines)} calls, {RECORDING.stat().st_size} bytes: {dict(codes)}")


if __name__ == "__main__":
    main()
