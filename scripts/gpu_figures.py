"""Generates the figures of ``docs/gpu.md``.

    python -m scripts.gpu_figures [--check]

They come from ``loadtest/results/gpu-h100.json``: the report of ``python -m loadtest gpu``, with
more steps of its engine, a profile of them, and runs of ``python -m loadtest run``.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from loadtest.gpu.model_sizes import SIZES
from loadtest.gpu.plan import Benchmark
from loadtest.gpu.roofline import roofline_rate
from scripts.generated_sections import ROOT, Section, main, markdown_table

REPORT = ROOT / "loadtest" / "results" / "gpu-h100.json"
DOCUMENT = ROOT / "docs" / "gpu.md"
_LLAMA, _BERT = "llama-1.1b", "bert-base"


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
        error = check.get("max_logprob_error")
        if error is None:
            error = check.get("most_behind_the_likeliest", 1 - check.get("min_cosine", 1.0))
        count = check.get("tokens", check.get("vectors"))
        lines.append([name, str(count), f"{error:.2g}", f"{check['tolerance']:.2g}"])
    return markdown_table(lines)


def steps(report: Mapping[str, Any]) -> str:
    """Milliseconds of a decode step of the 1.1B Llama by variant and batch."""
    rows = report["steps"][f"{_LLAMA}, fp16"]
    batches = sorted({row["batch"] for row in rows})
    table = [["ms a step, sequences together", *map(str, batches)]]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        found = {row["batch"]: row["step_ms"] for row in rows if row["variant"] == variant}
        table.append([variant, *(f"{found[b]:.2f}" if b in found else "" for b in batches)])
    ours = {row["batch"]: row["step_ms"] for row in rows if row["variant"] == "steps start ahead"}
    shares = {batch: _share(report, batch, 1e3 * batch / ms) for batch, ms in ours.items()}
    last = ["share of the bandwidth limit", *(_percent(shares.get(b)) for b in batches)]
    return markdown_table([*table, last])


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
    """Where a step's time goes."""
    found = report["profile"][f"{_LLAMA}, fp16"]
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
    lines = [["model, sequences together", "tokens/s", "× transformers", "× compiled", "× CT2"]]
    names = ("transformers_engine", "transformers_compiled_engine", "ctranslate2_engine")
    for name, found in report["speed"].items():
        for batch, row in sorted(found["rows"].items(), key=lambda item: int(item[0])):
            ratios = (f"{row['ratio_to'][peer]:.2f}" for peer in names)
            lines.append([f"{name}, {batch}", _rate(row["tokens_per_second"]["triune"]), *ratios])
    return markdown_table(lines)


def encoders(report: Mapping[str, Any]) -> str:
    """Tokens per second of BERT-base, and their share of the peak of matrix products."""
    operations = 2 * SIZES[_BERT].encoder / report["ceilings"]["operations_per_second"]["fp16"]
    lines = [["texts × tokens", "one lane, tokens/s", "of the peak", "two lanes", "of the peak"]]
    by_shape: dict[str, dict[int, int]] = {}
    for row in report["encoder_lanes"][f"{_BERT}, fp16"]:
        shape = f"{row['batch']} × {row['tokens']}"
        by_shape.setdefault(shape, {})[row["lanes"]] = row["tokens_per_second"]
    for shape, rates in by_shape.items():
        cells = ((_rate(rates[lanes]), _percent(rates[lanes] * operations)) for lanes in (1, 2))
        lines.append([shape, *_flat(cells)])
    return markdown_table(lines)


def _flat(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [cell for pair in pairs for cell in pair]


def _rate(rate: float) -> str:
    return f"{rate:,.0f}"


def committed() -> dict[str, Any]:
    """The report in ``loadtest/results``."""
    report: dict[str, Any] = json.loads(REPORT.read_text(encoding="utf-8"))
    return report


_RENDERERS = {
    "gpu-machine": machine,
    "gpu-checks": checks,
    "gpu-steps": steps,
    "gpu-profile": profile,
    "gpu-peers": peers,
    "gpu-encoders": encoders,
}
SECTIONS = tuple(
    Section(document=DOCUMENT, name=name, render=lambda render=render: render(committed()))  # type: ignore[misc]
    for name, render in _RENDERERS.items()
)

if __name__ == "__main__":
    sys.exit(main("loadtest/results", SECTIONS))
