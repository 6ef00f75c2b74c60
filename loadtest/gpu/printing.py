"""Prints the report of ``loadtest gpu``."""

from rich.console import Console
from rich.table import Table

from loadtest.gpu.cache_layouts import PAGED, SLOTS
from loadtest.gpu.kernel_times import PARTS
from loadtest.gpu.plan import OURS
from loadtest.gpu.report import Report


def _print_caches(report: Report, console: Console) -> None:
    table = Table("attention", "slots, ms", "pages, ms", "speed of pages / slots")
    for name, row in (report.get("caches") or {}).items():
        times = [
            f"{1e3 * each['seconds']:.3f}{'' if each['passed'] else ', WRONG'}"
            if "seconds" in each
            else "-"
            for each in (row[SLOTS], row[PAGED])
        ]
        table.add_row(name, *times, f"{row['ratio']:.2f}" if "ratio" in row else "-")
    _print(table, console)


def print_report(report: Report, console: Console) -> None:
    """Prints the checks, the attention over both caches, and the speeds."""
    table = Table("check", "passed", "error or reason")
    for name, found in report.get("checks").items():
        error = found.get("max_logprob_error")
        if error is None:
            error = found.get("most_behind_the_likeliest", 1 - found.get("min_cosine", 1))
        passed = {True: "yes", False: "NO", None: "-"}[found["passed"]]
        table.add_row(name, passed, found.get("reason", f"{error:.2g}"))
    _print(table, console)
    _print_caches(report, console)
    _print_speed(report, console)
    _print_profiles(report, console)


def _print_speed(report: Report, console: Console) -> None:
    table = Table("model", "batch", "tokens/s", "ms a step", "of roofline", "x peers, or reasons")
    for name, found in report.get("speed").items():
        for batch, row in found["rows"].items():
            ours = row.get("tokens_per_second", {}).get(OURS)
            ratios = [f"{each} {ratio:.2f}" for each, ratio in row.get("ratio_to", {}).items()]
            reasons = [f"{each}: {reason}" for each, reason in row.get("reasons", {}).items()]
            step, part = row.get("step_seconds"), row.get("part_of_best_possible")
            table.add_row(
                name,
                batch,
                "-" if ours is None else f"{ours:,.0f}",
                "-" if step is None else f"{1e3 * step:.3f}",
                "-" if part is None else f"{part:.0%}",
                ", ".join(ratios + reasons),
            )
        for engine, reason in found["reasons"].items():
            table.add_row(name, "-", "-", "-", "-", f"{engine}: {reason}")
    _print(table, console)


def _print_profiles(report: Report, console: Console) -> None:
    table = Table("profile, ms", "batch", "a step", "device", *PARTS)
    for name, found in (report.get("profile") or {}).items():
        for batch, row in found.items():
            cells = (f"{row[key]:.3f}" if key in row else "-" for key in ("step", "device", *PARTS))
            table.add_row(name, batch, *cells)
    _print(table, console)


def _print(table: Table, console: Console) -> None:
    if table.row_count:
        console.print(table)
