"""Draws the plots and writes the tables of ``docs/study.md`` from ``docs/study.json``.

    python -m tests.benchmarks.study
    python -m scripts.study [--check]

``--check`` changes nothing and fails if the page or a plot is of another report.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.generated_sections import ROOT, Section, main, markdown_table

REPORT = ROOT / "docs" / "study.json"
PAGE = ROOT / "docs" / "study.md"
SYSTEMS = {
    "gru": "GRU, fixed context (Sutskever et al. 2014)",
    "lstm-dot": "LSTM, dot attention (Luong et al. 2015)",
    "lstm-general": "LSTM, general attention (Luong et al. 2015)",
    "gru-additive": "GRU, additive attention (Bahdanau et al. 2015)",
    "transformer": "Transformer (Vaswani et al. 2017)",
    "dot": "Transformer, dot scores (Luong et al. 2015)",
    "bilinear": "Transformer, general scores (Luong et al. 2015)",
    "cosine": "Transformer, cosine scores (Graves et al. 2014)",
    "additive": "Transformer, additive scores (Bahdanau et al. 2015)",
    "relative": "Transformer, relative positions (Shaw et al. 2018)",
    "rotary": "Transformer, rotary positions (Su et al. 2021, RoFormer)",
    "window": "Transformer, windows of three tokens (Beltagy et al. 2020, Longformer)",
    "sandwich": "Sandwich Transformer (Press et al. 2020)",
    "universal": "Universal Transformer, four steps (Dehghani et al. 2019)",
    "experts": "Transformer, two of four experts (Jiang et al. 2024, Mixtral)",
    "llama": "Transformer, the layers of LLaMA (Touvron et al. 2023)",
}
# More lines would hide each other.
PLOTTED = ("gru", "gru-additive", "transformer", "relative", "universal", "llama")
# The metrics of a task: key, factor to the unit of the plot, label.
METRICS: dict[str, tuple[tuple[str, float, str], ...]] = {
    "sound": (
        ("phoneme_error_rate", 100, "phoneme error rate, %"),
        ("word_accuracy", 100, "words without an error, %"),
    ),
    "en-it": (("chrf", 1, "chrF"), ("bleu", 1, "BLEU")),
}
TITLES = {"sound": "Spelling to sound", "en-it": "English to Italian"}
ENDINGS = ("png", "svg")
# A machine that runs other programs: its wall times are not worth comparing.
MAX_QUIET_LOAD = 0.5

Row = dict[str, Any]


def report() -> dict[str, Any]:
    """The committed report."""
    found: dict[str, Any] = json.loads(REPORT.read_text("utf-8"))
    return found


def rows_of(task: str) -> list[Row]:
    """The measured systems of ``task``."""
    return [row for row in report()["systems"] if row["task"] == task]


def summary(task: str) -> str:
    """Size, cost and quality of each system."""
    metrics = METRICS[task]
    head = ["system", "parameters", "steps", "training, CPU s", *(label for *_, label in metrics)]
    lines = [[*head, "latency, ms", "CPU µs per token"]]
    for row in rows_of(task):
        quality = [f"{factor * row['quality'][key]:.1f}" for key, factor, _ in metrics]
        lines.append(
            [
                SYSTEMS[row["system"]],
                f"{row['num_parameters']:,}",
                f"{row['num_steps']:,}",
                f"{row['cpu_seconds']:.0f}",
                *quality,
                f"{row['latency_milliseconds']:.1f}",
                f"{row['cpu_microseconds_per_token']:.0f}",
            ]
        )
    return f"{markdown_table(lines)}\n\n{_conditions(task)}"


def by_length(task: str) -> str:
    """The first metric of each system by the length of the source."""
    key, factor, label = METRICS[task][0]
    rows = rows_of(task)
    groups = rows[0]["quality"]["by_length"] if rows else []
    unit = next(one["unit"] for one in report()["tasks"] if one["name"] == task)
    lines = [[f"{label}, by {unit}", *(f"{one['first']}–{one['last']}" for one in groups)]]
    lines.append(["texts", *(str(one["num_texts"]) for one in groups)])
    for row in rows:
        values = [f"{factor * one[key]:.1f}" for one in row["quality"]["by_length"]]
        lines.append([SYSTEMS[row["system"]], *values])
    return markdown_table(lines)


def _conditions(task: str) -> str:
    found = report()
    load = max(row["load_average_before"] for row in rows_of(task))
    text = (
        f"{found['machine']['cores']} cores of {found['machine']['processor']}, one thread, fp32, "
        f"medians of {found['rounds']} interleaved rounds."
    )
    if load > MAX_QUIET_LOAD:
        text += (
            f" The machine also ran other programs (load {load:.1f}): compare processor times, not "
            "latencies."
        )
    return text


def digest() -> str:
    """Returns the hash of the report, which the plots carry."""
    return hashlib.sha256(REPORT.read_bytes()).hexdigest()


def plots() -> list[Path]:
    """The files of all plots."""
    names = [f"study-{task}" for task in METRICS if rows_of(task)]
    return [PAGE.with_name(f"{name}.{ending}") for name in names for ending in ENDINGS]


def draw() -> None:
    """Writes quality by source length, a plot for each task."""
    from matplotlib import rc_context  # noqa: PLC0415  (extra "train")
    from matplotlib.figure import Figure  # noqa: PLC0415

    for task, metrics in METRICS.items():
        rows = rows_of(task)
        if not rows:
            continue
        unit = next(one["unit"] for one in report()["tasks"] if one["name"] == task)
        figure = Figure(figsize=(10, 4), layout="constrained")
        for axes, (key, factor, label) in zip(
            figure.subplots(1, len(metrics)), metrics, strict=True
        ):
            for row in rows:
                if row["system"] not in PLOTTED:
                    continue
                groups = row["quality"]["by_length"]
                x = [one["mean_length"] for one in groups]
                y = [factor * one[key] for one in groups]
                axes.plot(x, y, marker="o", label=SYSTEMS[row["system"]])
            axes.set(xlabel=f"length of the source, {unit}", ylabel=label)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        figure.axes[0].legend(fontsize="small")
        figure.suptitle(TITLES[task])
        for ending in ENDINGS:
            with rc_context({"svg.hashsalt": "study"}):
                figure.savefig(
                    PAGE.with_name(f"study-{task}.{ending}"),
                    dpi=110,
                    metadata={"Description": digest()}
                    | ({"Date": None} if ending == "svg" else {}),
                )


def outdated_plots() -> list[Path]:
    """Plots that are missing, or of another report."""
    mark = digest().encode()
    return [path for path in plots() if not path.is_file() or mark not in path.read_bytes()]


def _section(task: str, name: str, render: Callable[[str], str]) -> Section:
    return Section(document=PAGE, name=f"{name}-{task}", render=lambda: render(task))


SECTIONS = tuple(
    _section(task, name, render)
    for task in METRICS
    for name, render in (("summary", summary), ("length", by_length))
)

if __name__ == "__main__":
    status = main("docs/study.json", SECTIONS, draw)
    stale = outdated_plots()
    for path in stale:
        print(f"{path.relative_to(ROOT)}: not drawn from docs/study.json", file=sys.stderr)
    sys.exit(status or bool(stale))
