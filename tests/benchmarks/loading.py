"""Time between tokens of a stream while other models are loaded, and without, as JSON.

    python -m tests.benchmarks.loading --bundles bundles --json build/loading.json

One client streams from ``--stream``. Rounds with and without loads alternate; in a round with
loads, the other models are unloaded and loaded in turn, so that each load parses its tokenizer.
"""

import json
import re
import threading
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from client.admin import AdminClient
from client.sync import Client
from loadtest.machine import machine
from tests.serving import server_process

PROMPT = "Once upon a time"
NEW_TOKENS = 400


def _gaps(client: Client, label: str, done: threading.Event | None, seconds: float) -> list[float]:
    """Seconds between tokens, until ``done`` is set or ``seconds`` have passed."""
    gaps: list[float] = []
    model, _, version = label.partition("/")
    end = time.monotonic() + seconds
    while not (time.monotonic() > end if done is None else done.is_set()):
        last = None
        with_tokens = client.generate_stream(
            model, PROMPT, version=version, max_new_tokens=NEW_TOKENS, ignore_eos=True
        )
        for _ in with_tokens:
            now = time.monotonic()
            if last is not None:
                gaps.append(now - last)
            last = now
            if now > end if done is None else done.is_set():
                with_tokens.close()
                break
    return gaps


def _figures(gaps: list[float]) -> dict[str, float]:
    p50, p99, longest = (1000 * float(np.quantile(gaps, share)) for share in (0.5, 0.99, 1.0))
    return {
        "p50_milliseconds": round(p50, 2),
        "p99_milliseconds": round(p99, 2),
        "longest_milliseconds": round(longest, 2),
        "tokens": len(gaps),
    }


def main(
    bundles: Annotated[Path, typer.Option(help="Folder of bundles.")] = Path("bundles"),
    stream: Annotated[
        str, typer.Option(help="The model that streams, NAME/VERSION.")
    ] = "smollm2/1",
    load: Annotated[
        list[str] | None, typer.Option(help="Models to load, NAME or NAME/VERSION.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    out: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measures one stream beside loads."""
    names = [name.partition("/") for name in load or ["en-pt", "minilm"]]
    alone: list[float] = []
    beside: list[float] = []
    load_seconds: list[float] = []
    with server_process(bundles, "--admin", "127.0.0.1:0") as server:
        found = re.search(r"admin on port (\d+)", "".join(server.log))
        assert found is not None, "the server's log has the admin port"
        with (
            Client(server.target, timeout_seconds=600) as client,
            AdminClient(f"127.0.0.1:{found[1]}", timeout_seconds=600) as admin,
        ):
            _gaps(client, stream, None, 3.0)

            def load_all(done: threading.Event) -> None:
                try:
                    for name, _, version in names:
                        admin.unload_model(name, version=version)
                        started = time.monotonic()
                        admin.load_model(name, version=version)
                        load_seconds.append(time.monotonic() - started)
                finally:
                    done.set()

            for _ in range(rounds):
                alone += _gaps(client, stream, None, 4.0)
                done = threading.Event()
                loading = threading.Thread(target=load_all, args=(done,))
                loading.start()
                beside += _gaps(client, stream, done, 0.0)
                loading.join()
    figures, figures_alone = _figures(beside), _figures(alone)
    report = {
        "machine": machine(),
        "loaded": ["".join(name) for name in names],
        "load_seconds": round(float(np.median(load_seconds)), 2),
        "alone": figures_alone,
        "beside_loads": figures,
        "p99_ratio": round(figures["p99_milliseconds"] / figures_alone["p99_milliseconds"], 2),
    }
    text = json.dumps(report, indent=2)
    print(text)
    if out is not None:
        out.write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
