"""Profiles of our engine: where the device's time goes in each batch size."""

from typing import Any

from loadtest.compare.errors import WorkerError
from loadtest.gpu.engine_worker import Engines, run_message
from loadtest.gpu.plan import Profile
from loadtest.gpu.report import Report

_MODULE = "scripts.profiled_bench"  # it imports the server and PyTorch, which we may not
_ENCODER_ROUNDS = 10


def run_profile(item: Profile, report: Report, engines: Engines) -> None:
    """Profiles the batch sizes that the report lacks."""
    benchmark = item.benchmark
    profiles: dict[str, Any] = report.get("profile") or {}
    found: dict[str, Any] = profiles.setdefault(item.name, {})
    wanted = [batch for batch in benchmark.batches if str(batch) not in found]
    if not wanted:
        return
    try:
        loaded = engines.load(benchmark, _MODULE)
    except WorkerError as error:
        found |= {str(batch): {"reason": str(error)} for batch in wanted}
        report.set("profile", profiles)
        return
    for batch in wanted:
        name = f"{item.name}, {batch}".replace(", ", "-").replace(" ", "-")
        message = {
            **run_message(benchmark, batch, 0),
            "op": "profile",
            "rounds": 1 if benchmark.num_new_tokens else _ENCODER_ROUNDS,
            "trace": str(engines.setting.root / "traces" / f"{name}.json.gz"),
        }
        try:
            found[str(batch)] = loaded.call(message)
        except WorkerError as error:
            found[str(batch)] = {"reason": str(error)}
        report.set("profile", profiles)
        if not loaded.is_alive:
            break
