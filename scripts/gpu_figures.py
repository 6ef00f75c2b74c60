"""Generates the figures of ``docs/gpu.md``.

    python -m scripts.gpu_figures [--check]

They come from the reports of ``python -m loadtest gpu`` on two cards. Before that measured all
parts itself, steps (``steps``) and lanes (``encoder_lanes``) were added to the H100's by hand. A
section without data is not rendered, and needs no place in the document.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from loadtest.gpu.model_sizes import SIZES, Family
from loadtest.gpu.plan import OURS, Benchmark
from loadtest.gpu.roofline import roofline_rate
from scripts.generated_sections import ROOT, Section, main, markdown_table

_RESULTS = ROOT / "loadtest" / "results"
H100, H200 = _RESULTS / "gpu-h100.json", _RESULTS / "gpu-h200.json"
DOCUMENT = ROOT / "docs" / "gpu.md"
_LLAMA, _BERT = "llama-1.1b", "bert-base"
_TODAY = "today"
_PROMPTS, _LANES, _PLAIN = "prompts of", ", 2 lanes", ", without CUDA graphs"
_LARGE = ", batches of 16384"
# Columns of peers, and the modules of loadtest/peers that have one.
_PEERS = {
    "transformers": (
        "transformers_engine",
        "transformers_translator_engine",
        "torch_encoder_engine",
    ),
    "compiled": ("transformers_compiled_engine",),
    "CT2": ("ctranslate2_engine",),
    "sentence-transformers": ("sentence_transformers_engine",),
}


def machine(report: Mapping[str, Any]) -> str:
    """The card, its peak rates and the versions."""
    about, peaks = report["machine"], report["ceilings"]
    versions = about["versions"]
    bandwidth = peaks["bytes_per_second"] / 1e12
    products = peaks["operations_per_second"]["fp16"] / 1e12
    return (
        f"Measured on one {about['card']}: driver {about['driver']}, CUDA "
        f"{about['cuda_of_torch']}, ONNX Runtime {versions['onnxruntime-gpu']}. Its peaks: "
        f"{bandwidth:.2f} TB/s of a copy, {products:.0f} TFLOP/s of an fp16 product."
    )


def checks(report: Mapping[str, Any]) -> str:
    """Every path beside ``transformers`` in fp32."""
    lines = [["path, precision", "tokens or vectors", "largest error", "limit"]]
    for name, check in report["checks"].items():
        if "reason" in check:
            lines.append([name, "", check["reason"], ""])
            continue
        error = check.get("max_logprob_error")
        if error is None:
            error = check.get("most_behind_the_likeliest", 1 - check.get("min_cosine", 1.0))
        count = check.get("tokens", check.get("vectors"))
        lines.append([name, str(count), f"{error:.2g}", f"{check['tolerance']:.2g}"])
    return markdown_table(lines)


def steps(report: Mapping[str, Any]) -> str:
    """Milliseconds of a decode step of the 1.1B Llama by variant and batch."""
    times: dict[str, dict[int, float]] = {}
    for row in report.get("steps", {}).get(f"{_LLAMA}, fp16", ()):
        times.setdefault(row["variant"], {})[row["batch"]] = row["step_ms"]
    best = "steps start ahead"
    for name, batch, row in _rows(report, Family.DECODER):
        if name.startswith(f"{_LLAMA}, ") and _PROMPTS not in name and "first_token_seconds" in row:
            best = _TODAY
            variant = name.removeprefix(f"{_LLAMA}, ").replace("fp16", _TODAY, 1)
            times.setdefault(variant, {})[batch] = 1e3 * row["step_seconds"]
    batches = sorted({batch for found in times.values() for batch in found})
    table = [["ms a step, sequences together", *map(str, batches)]]
    for variant, found in times.items():
        table.append([variant, *(f"{found[b]:.2f}" if b in found else "" for b in batches)])
    shares = {batch: _share(report, batch, 1e3 * batch / ms) for batch, ms in times[best].items()}
    last = ["share of the bandwidth limit", *(_percent(shares.get(b)) for b in batches)]
    return markdown_table([*table, last])


def _rows(
    report: Mapping[str, Any], *families: Family
) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Names, batches and rows of the models of some families, with a rate of our engine."""
    for name, found in report["speed"].items():
        if SIZES[name.partition(",")[0]].family in families:
            for batch in sorted(map(int, found["rows"])):
                row = found["rows"][str(batch)]
                if OURS in row.get("tokens_per_second", {}):
                    yield name, batch, row


def _share(report: Mapping[str, Any], batch: int, rate: float) -> float:
    benchmark = Benchmark(
        size=SIZES[_LLAMA],
        precision="fp16",
        batches=(batch,),
        num_tokens=128,
        num_new_tokens=64,
        rounds=1,
    )
    return rate / roofline_rate(benchmark, batch, "cuda", report["ceilings"])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def profile(report: Mapping[str, Any]) -> str:
    """Where a step's time goes, of all models and batches that were profiled."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, rows in report["profile"].items():
        prefix = "" if name == f"{_LLAMA}, fp16" else f"{name.partition(',')[0]}, "
        found |= {f"{prefix}{b}": row for b, row in rows.items() if "reason" not in row}
    parts = ("products", "attention", "norms", "activations", "other")
    lines = [["ms a step, sequences together", *found]]
    lines += [[part, *(f"{row[part]:.2f}" for row in found.values())] for part in parts]
    gaps = (row["device"] - sum(row[part] for part in parts) for row in found.values())
    lines.append(["between kernels", *(f"{gap:.2f}" for gap in gaps)])
    hosts = (row["step"] - row["device"] for row in found.values())
    lines.append(["the device waits for the host", *(f"{host:.2f}" for host in hosts)])
    lines.append(["a step, traced", *(f"{row['step']:.2f}" for row in found.values())])
    return markdown_table(lines)


def peers(report: Mapping[str, Any]) -> str:
    """Tokens per second beside other engines."""
    found = [(f"{name}, {batch}", row) for name, batch, row in _rows(report, *Family)]
    found = [(name, row) for name, row in found if row.get("ratio_to")]
    columns = [
        column
        for column, engines in _PEERS.items()
        if any(engine in row["ratio_to"] for _, row in found for engine in engines)
    ]
    head = ["model, sequences together", "tokens/s", *(f"× {column}" for column in columns)]
    lines = [head]
    for name, row in found:
        ratios = (
            ", ".join(f"{row['ratio_to'][e]:.2f}" for e in _PEERS[column] if e in row["ratio_to"])
            for column in columns
        )
        lines.append([name, _rate(row["tokens_per_second"][OURS]), *ratios])
    return markdown_table(lines)


def others(report: Mapping[str, Any]) -> str:
    """Tokens per second of other engines where ours has not been measured beside them."""
    found: list[tuple[str, Mapping[str, float]]] = []
    for name, rows in report["speed"].items():
        for batch, row in rows["rows"].items():
            if (rates := row.get("tokens_per_second", {})) and OURS not in rates:
                found.append((f"{name}, {batch}", rates))
    columns = [
        column
        for column, engines in _PEERS.items()
        if any(engine in rates for _, rates in found for engine in engines)
    ]
    lines = [["model, sequences together", *(f"{column}, tokens/s" for column in columns)]]
    for name, rates in found:
        cells = (
            ", ".join(_rate(rates[e]) for e in _PEERS[column] if e in rates) for column in columns
        )
        lines.append([name, *cells])
    return markdown_table(lines) if len(lines) > 1 else ""


def speed(report: Mapping[str, Any]) -> str:
    """Every decoder and encoder-decoder in its first precision, with its share of the limit."""
    lines = [["model, sequences together", "tokens/s", "ms a step", "of the limit"]]
    for name, batch, row in _rows(report, Family.DECODER, Family.ENCODER_DECODER):
        if name.endswith(", fp16") and "first_token_seconds" in row:
            rate, step = _rate(row["tokens_per_second"][OURS]), f"{1e3 * row['step_seconds']:.2f}"
            lines.append([f"{name}, {batch}", rate, step, _percent(row["part_of_best_possible"])])
    return markdown_table(lines) if len(lines) > 1 else ""


def prompts(report: Mapping[str, Any]) -> str:
    """Prompt tokens per second of the 1.1B Llama by the most tokens of a step."""
    lines = [["prompts", "first tokens after, ms", "prompt tokens/s"]]
    for name, batch, row in _rows(report, Family.DECODER):
        if _PROMPTS in name and "first_token_seconds" in row:
            label = name.partition(_PROMPTS)[2]
            tokens, seconds = int(label.split()[0]), row["first_token_seconds"]
            cells = f"{1e3 * seconds:.1f}", _rate(batch * tokens / seconds)
            lines.append([f"{batch} of{label}", *cells])
    return markdown_table(lines) if len(lines) > 1 else ""


def caches(report: Mapping[str, Any]) -> str:
    """A step of attention alone over slots and over pages."""
    lines = [["one layer's step", "slots, ms", "pages, ms", "speed of pages / slots"]]
    for name, row in (report.get("caches") or {}).items():
        times: list[str] = [
            f"{1e3 * row[cache]['seconds']:.3f}" if "seconds" in row[cache] else ""
            for cache in ("slots", "paged")
        ]
        lines.append([name, *times, f"{row['ratio']:.2f}" if "ratio" in row else ""])
    return markdown_table(lines) if len(lines) > 1 else ""


def encoders(report: Mapping[str, Any]) -> str:
    """Tokens per second of encoders, and their share of the peak of matrix products."""
    by_shape: dict[tuple[str, str], dict[str, float]] = {}
    for row in report.get("encoder_lanes", {}).get(f"{_BERT}, fp16", ()):
        shape = _BERT, f"{row['batch']} × {row['tokens']}"
        setting = _LANES if row["lanes"] == 2 else ""
        by_shape.setdefault(shape, {})[setting] = row["tokens_per_second"]
    for name, batch, found in _rows(report, Family.ENCODER):
        described, _, setting = name.partition(" tokens")
        model, tokens = name.partition(",")[0], described.rpartition(" ")[2]
        rates = by_shape.setdefault((model, f"{batch} × {tokens}"), {})
        rates[setting] = found["tokens_per_second"][OURS]
    settings = {
        "": "one lane",
        _PLAIN: "not recorded",
        _LANES: "two lanes",
        _LARGE: "batches of 16,384 tokens",
    }
    used = [name for name in settings if any(name in rates for rates in by_shape.values())]
    heads = ((f"{settings[name]}, tokens/s", "of the peak") for name in used)
    lines = [["texts × tokens", *_flat(heads)]]
    peak = report["ceilings"]["operations_per_second"]["fp16"]
    for (model, texts), rates in by_shape.items():
        operations = 2 * SIZES[model].encoder / peak
        cells = (
            (_rate(rates[name]), _percent(rates[name] * operations)) if name in rates else ("", "")
            for name in used
        )
        label = texts if model == _BERT else f"{model}, {texts}"
        lines.append([label, *_flat(cells)])
    return markdown_table(lines)


def server(report: Mapping[str, Any]) -> str:
    """Our server with a number of clients of one task, and with all tasks in a soak."""
    runs = {name: row for name, row in report["server"]["runs"].items() if "reason" not in row}
    clients = sorted({int(end) for name in runs if (end := name.rpartition("-")[2]).isdigit()})
    lines = [["server, clients", *map(str, clients), "16 of each, for long"]]
    for task in ("generate", "translate", "embed"):
        found = [runs.get(name) for name in (*(f"{task}-{n}" for n in clients), f"soak-{task}")]
        kind = "input" if task == "embed" else "output"
        rates = [row and row[f"{kind}_tokens_per_second"] for row in found]
        lines.append([f"{task}, {kind} tokens/s", *("" if r is None else _rate(r) for r in rates)])
        times = [row and row["latency_seconds"]["p50"] for row in found]
        cells = ("" if time is None else f"{1e3 * time:.0f}" for time in times)
        lines.append([f"{task}, p50 ms", *cells])
        errors = [sum(row["errors"].values()) if row else 0 for row in found]
        if any(errors):
            lines.append([f"{task}, errors", *map(str, errors)])
    return markdown_table(lines)


def _flat(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [cell for pair in pairs for cell in pair]


def _rate(rate: float) -> str:
    return f"{rate:,.0f}"


def committed(path: Path = H100) -> dict[str, Any]:
    """A report in ``loadtest/results``."""
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


_Render = Callable[[Mapping[str, Any]], str]
_RENDERERS: dict[str, tuple[Path, _Render]] = {
    "gpu-machine": (H100, machine),
    "gpu-machine-h200": (H200, machine),
    "gpu-checks": (H200, checks),
    "gpu-steps": (H100, steps),
    "gpu-speed": (H200, speed),
    "gpu-profile": (H100, profile),
    "gpu-profile-h200": (H200, profile),
    "gpu-prompts": (H200, prompts),
    "gpu-caches": (H200, caches),
    "gpu-peers": (H100, peers),
    "gpu-peers-h200": (H200, peers),
    "gpu-others": (H200, others),
    "gpu-encoders": (H100, encoders),
    "gpu-encoders-h200": (H200, encoders),
    "gpu-server": (H100, server),
}


def _section(name: str, path: Path, render: _Render) -> Section:
    return Section(document=DOCUMENT, name=name, render=lambda: render(committed(path)))


SECTIONS = tuple(
    _section(name, path, render)
    for name, (path, render) in _RENDERERS.items()
    if render(committed(path))
)

if __name__ == "__main__":
    sys.exit(main("loadtest/results", SECTIONS))
