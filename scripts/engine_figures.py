"""Generates the engine figures of ``docs/performance.md``.

    python -m scripts.engine_figures [--check]

The figures come from the report of ``python -m tests.benchmarks.engine``. ``--check`` changes
nothing and fails if the document differs from the report.
"""

import json
import sys
from typing import Any

from scripts.generated_sections import ROOT, Section, main

REPORT = ROOT / "loadtest" / "results" / "engine-smollm2-int8.json"


def figures(report: dict[str, Any]) -> str:
    """Markdown of the report: two tables and three ratios."""
    decode = report["decode_tokens_per_second"]
    overhead = report["overhead_outside_runtime"]
    steps = report["step_seconds_by_cached_tokens"]
    lines = [
        f"`{report['model']}` in {report['precision']}, {report['cores']} cores of "
        f"{report['machine']}, ONNX Runtime {report['onnxruntime']}, medians of "
        f"{report['rounds']} interleaved rounds:",
        "",
        f"| sequences decoding together | {' | '.join(decode)} |",
        f"|---|{'---|' * len(decode)}",
        f"| tokens/s | {' | '.join(f'{value:.0f}' for value in decode.values())} |",
        "| share of a step outside ONNX Runtime | "
        + " | ".join(f"{100 * value:.1f} %" for value in overhead.values())
        + " |",
        "",
        f"| tokens in the cache | {' | '.join(steps)} |",
        f"|---|{'---|' * len(steps)}",
        f"| ms per new token | {' | '.join(f'{1e3 * value:.1f}' for value in steps.values())} |",
        "",
        f"- Decoding one sequence from the cache is {report['decode_over_recompute']:.0f} × as "
        f"fast as recomputing {report['prefix_tokens']} tokens for each new one.",
        f"- 16 sequences together decode {report['batch_16_over_batch_1']:.1f} × the tokens/s of "
        "one.",
        f"- 16 streaming gRPC clients on the same cores get "
        f"{100 * report['grpc_over_bare_engine']:.0f} % of the tokens/s of the engine alone, "
        "which runs one lane on all cores; a server runs one lane per core.",
    ]
    return "\n".join(lines)


def committed() -> dict[str, Any]:
    """The report in ``loadtest/results``."""
    report: dict[str, Any] = json.loads(REPORT.read_text(encoding="utf-8"))
    return report


SECTIONS = (
    Section(
        document=ROOT / "docs" / "performance.md",
        name="engine-figures",
        render=lambda: figures(committed()),
    ),
)

if __name__ == "__main__":
    sys.exit(main("loadtest/results", SECTIONS))
