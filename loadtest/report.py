"""A run's results as a table and as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from client.render import counted
from loadtest.statistics import Distribution, Summary

_ROWS = {
    "latency": "latency_seconds",
    "first token": "first_token_seconds",
    "inter-token": "inter_token_seconds",
    "sent late": "late_seconds",
}


def write_json(path: Path, summary: Summary, about: Mapping[str, object]) -> None:
    """Writes the results. ``about`` adds model, arguments, machine and versions."""
    text = json.dumps({**asdict(summary), **about}, indent=2, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")


def print_table(summary: Summary, title: str, texts_per_request: int = 1) -> None:
    """Prints rates and counts, then a table of durations in milliseconds."""
    errors = ", ".join(f"{count} {status}" for status, count in summary.errors.items())
    print(title)
    print(
        f"{counted(summary.requests, 'request')} in {summary.duration_seconds:g} s "
        f"({errors or 'no errors'}); the last one ended {summary.drain_seconds:.2f} s after that"
    )
    print(
        f"{summary.requests_per_second:.2f} requests/s, "
        f"{summary.requests_per_second * texts_per_request:.2f} texts/s, "
        f"{summary.output_tokens_per_second:.1f} output tokens/s, "
        f"{summary.input_tokens_per_second:.1f} input tokens/s "
        f"({summary.reused_tokens} of {summary.input_tokens} from the prefix cache)"
    )
    table = Table("milliseconds", "p50", "p90", "p99", "mean", "max")
    for name, field in _ROWS.items():
        table.add_row(name, *_milliseconds(getattr(summary, field)))
    Console().print(table)


def _milliseconds(seconds: Distribution) -> list[str]:
    return [
        "–" if value is None else f"{value * 1000:.2f}"
        for value in (seconds.p50, seconds.p90, seconds.p99, seconds.mean, seconds.max)
    ]
