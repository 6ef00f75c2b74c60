"""Writes the README's figures from the reports in ``loadtest/results``.

    python -m scripts.readme_figures [--check]

``--check`` changes nothing and fails if the README does not say what the reports say.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REPORT = ROOT / "loadtest" / "results" / "engine-smollm2-int8.json"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def figures(report: dict[str, Any]) -> str:
    """The Markdown between the marks."""
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
    """``readme`` with the figures of ``report``. Raises ``ValueError`` if it has no marks."""
    before, _, rest = readme.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"README.md has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{figures(report)}\n{END}{after}"


def main() -> int:
    """Returns the exit status."""
    readme = README.read_text(encoding="utf-8")
    wanted = rendered(readme, json.loads(REPORT.read_text(encoding="utf-8")))
    if "--check" in sys.argv[1:]:
        if readme != wanted:
            print("README.md: figures are not those of loadtest/results", file=sys.stderr)
        return int(readme != wanted)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
