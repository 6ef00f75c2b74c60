"""Writes the README's figures from the reports in ``loadtest/results``.

    python -m scripts.readme_figures [--check]

``--check`` changes nothing and fails if the README does not say what they say.
"""

import json
import sys
from typing import Any

from scripts.parts import ROOT, main, replaced

REPORT = ROOT / "loadtest" / "results" / "engine-smollm2-int8.json"


def figures(report: dict[str, Any]) -> str:
    """Its Markdown."""
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
        "| of a step outside ONNX Runtime | "
        + " | ".join(f"{100 * value:.1f} %" for value in overhead.values())
        + " |",
        "",
        f"| tokens in the cache | {' | '.join(steps)} |",
        f"|---|{'---|' * len(steps)}",
        f"| ms per new token | {' | '.join(f'{1e3 * value:.1f}' for value in steps.values())} |",
        "",
        f"- One sequence decodes {report['decode_over_recompute']:.0f} × as fast as by reading "
        f"{report['prefix_tokens']} tokens again for each new one.",
        f"- 16 sequences together: {report['batch_16_over_batch_1']:.1f} × the tokens/s of one.",
        f"- 16 streaming clients through gRPC, on the same cores: "
        f"{100 * report['grpc_over_bare_engine']:.0f} % of the engine alone.",
    ]
    return "\n".join(lines)


def rendered(readme: str, report: dict[str, Any]) -> str:
    """``readme`` with the figures of ``report``."""
    return replaced(readme, "figures", figures(report))


def committed() -> dict[str, Any]:
    """The report in ``loadtest/results``."""
    report: dict[str, Any] = json.loads(REPORT.read_text(encoding="utf-8"))
    return report


if __name__ == "__main__":
    sys.exit(main("figures", "loadtest/results", lambda readme: rendered(readme, committed())))
