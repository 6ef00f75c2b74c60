"""``python -m tests.fuzz TARGET… --runs N | --seconds S``: coverage-guided fuzzing.

A finding is an input for which a target raises, takes too long or takes too much memory. It is
saved under ``build/fuzz/TARGET/``. After the fix, move it to
``tests/fuzz/corpus/TARGET/``, which every test run replays.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tests.fuzz.registry import CORPUS, ROOT, TARGETS

if TYPE_CHECKING:  # the driver imports atheris, which may be missing
    from tests.fuzz.driver import Job

BUILD = ROOT / "build" / "fuzz"
MAX_SECONDS_OF_INPUT = 20
MAX_RESIDENT_MB = 4096
_COUNTERS = re.compile(r"#\d+\s+\w+\s+cov: (\d+) ft: (\d+)")
_INPUTS = re.compile(r"^stat::number_of_executed_units:\s*(\d+)|^#(\d+)\s", re.MULTILINE)
_PEAK = re.compile(r"^stat::peak_rss_mb:\s*(\d+)", re.MULTILINE)
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")


@dataclass(frozen=True)
class Outcome:
    """``edges``: covered branches. ``finding``: name of the saved input, or empty."""

    target: str
    inputs: int
    seconds: int
    edges: int
    features: int
    peak_resident_mb: int
    finding: str


def fuzz(targets: Sequence[str], folder: Path, runs: int, seconds: int, seed: int) -> list[Outcome]:
    """Fuzzes targets one after the other, each until a limit is reached or an input fails.

    ``folder`` keeps each target's corpus for the next run.
    """
    names = [target.rpartition(".")[2] for target in targets]
    jobs = [
        _make_job(target, name, folder, runs, seconds, seed)
        for target, name in zip(targets, names, strict=True)
    ]
    previous_findings = [_findings(folder / name) for name in names]
    completed = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.driver", json.dumps(jobs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        raise RuntimeError(f"the fuzzer did not start:\n{completed.stderr[-2000:]}")
    outcomes = []
    statuses = json.loads(completed.stdout.splitlines()[-1])
    for name, job, status, previous in zip(names, jobs, statuses, previous_findings, strict=True):
        finding = ", ".join(sorted(_findings(folder / name) - previous))
        if status and not finding:
            finding = f"exit status {status}: see {job['log']}"
        log = Path(job["log"]).read_text("utf-8", errors="replace")
        outcomes.append(_parse_outcome(name, log, finding))
    return outcomes


def _make_job(target: str, name: str, folder: Path, runs: int, seconds: int, seed: int) -> "Job":
    corpus = folder / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    options = [
        f"-seed={seed}",
        f"-timeout={MAX_SECONDS_OF_INPUT}",
        f"-rss_limit_mb={MAX_RESIDENT_MB}",
        f"-artifact_prefix={folder / name}/",
        "-print_final_stats=1",
        str(corpus),
        *([str(CORPUS / name)] if (CORPUS / name).is_dir() else []),
    ]
    log = str(folder / name / "log")
    return {
        "target": target,
        "corpus": str(corpus),
        "options": options,
        "log": log,
        "runs": runs,
        "seconds": seconds,
    }


def _findings(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"log"}


def _parse_outcome(name: str, log: str, finding: str) -> Outcome:
    counters = _COUNTERS.findall(log) or [("0", "0")]
    done, inputs, peak = _DONE.search(log), _INPUTS.findall(log), _PEAK.search(log)
    return Outcome(
        target=name,
        inputs=int(done[1]) if done else max((int(a or b) for a, b in inputs), default=0),
        seconds=int(done[2]) if done else 0,
        edges=int(counters[-1][0]),
        features=int(counters[-1][1]),
        peak_resident_mb=int(peak[1]) if peak else 0,
        finding=finding,
    )


def main(
    targets: Annotated[
        list[str] | None, typer.Argument(help=f"One or more of: {', '.join(TARGETS)}.")
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Fuzz every target, one after the other.")
    ] = False,
    runs: Annotated[int, typer.Option(min=0, help="Inputs per target; 0: unlimited.")] = 0,
    seconds: Annotated[int, typer.Option(min=0, help="Seconds per target; 0: unlimited.")] = 0,
    seed: Annotated[int, typer.Option(min=1, help="Seed of the mutations.")] = 1,
    folder: Annotated[Path, typer.Option(help="Keeps the corpora for the next run.")] = BUILD,
    json_: Annotated[
        Path | None, typer.Option("--json", help="Merge results into this file.")
    ] = None,
) -> None:
    """Fuzzes targets. Exits with 1 if an input fails."""
    names = list(TARGETS) if all_ else targets or []
    if not names or not (runs or seconds):
        raise typer.BadParameter("give targets or --all, and --runs or --seconds")
    outcomes = fuzz(names, folder, runs, seconds, seed)
    for outcome in outcomes:
        print(
            f"{outcome.target:15} {outcome.inputs:9} inputs {outcome.seconds:6} s "
            f"{outcome.edges:6} edges {outcome.peak_resident_mb:6} MB  {outcome.finding}"
        )
    if json_ is not None:
        results = json.loads(json_.read_text("utf-8")) if json_.exists() else {}
        results |= {outcome.target: asdict(outcome) for outcome in outcomes}
        json_.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
    raise typer.Exit(any(outcome.finding for outcome in outcomes))


if __name__ == "__main__":
    typer.run(main)
