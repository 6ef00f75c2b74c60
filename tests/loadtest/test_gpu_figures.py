"""The tables of docs/gpu.md, from reports of before and after all parts were measured."""

from typing import Any

import pytest

from loadtest.gpu.kernel_times import Kernel, of_decode
from scripts.gpu_figures import SECTIONS, caches, committed, encoders, peers, profile, prompts
from scripts.gpu_figures import checks as checks_table
from scripts.gpu_figures import speed as speed_table
from scripts.gpu_figures import steps as steps_table


def row(rate: float, step: float = 0.0, **ratio_to: float) -> dict[str, Any]:
    found: dict[str, Any] = {"tokens_per_second": {"triune": rate}, "part_of_best_possible": 0.5}
    if step:
        found |= {"step_seconds": step, "first_token_seconds": 0.25}
    return {**found, "ratio_to": ratio_to}


@pytest.fixture
def report() -> dict[str, Any]:
    def of(**rows: dict[str, Any]) -> dict[str, Any]:
        return {"rows": {name[1:]: each for name, each in rows.items()}, "reasons": {}}

    failed = {"reasons": {"triune": "out of memory"}}
    kernels = [Kernel(name, at, 500.0) for at in (0, 2000) for name in ("nvjet", "best_token")]
    kernels = [Kernel(k.name, k.start + 600 * (i % 2), k.duration) for i, k in enumerate(kernels)]
    return {
        "ceilings": {"bytes_per_second": 3e12, "operations_per_second": {"fp16": 7e14}},
        "checks": {"beams, fp16": {"passed": None, "reason": "no"}},
        "steps": {"llama-1.1b, fp16": [{"variant": "earlier", "batch": 1, "step_ms": 1.71}]},
        "profile": {
            "llama-1.1b, fp16": {"1": of_decode(kernels, 1), "8": {"reason": "no"}},
            "bert-base, fp16, 128 tokens": {"32": of_decode(kernels, 1)},
        },
        "caches": {"1 rows": {"slots": {"seconds": 0.0005}, "paged": {"reason": "no"}}},
        "speed": {
            "llama-1.1b, fp16": of(_1=row(800, 0.00115, ctranslate2_engine=3.5), _64=failed),
            "llama-1.1b, fp16, int8 cache": of(_1=row(700, 0.00125)),
            "llama-1.1b, fp16, prompts of 512 tokens, steps of 2048": of(_64=row(9, 0.1)),
            "transformer-base, fp16": of(_8=row(5, 0.5, transformers_translator_engine=9.0)),
            "bert-large, fp16, 128 tokens": of(_32=row(1e6, torch_encoder_engine=1.25)),
            "bert-large, fp16, 128 tokens, 2 lanes": of(_32=row(2e6)),
        },
    }


def test_the_document_has_every_section_with_data() -> None:
    for section in SECTIONS:
        section.rendered()
    names = {section.name for section in SECTIONS}
    assert {"gpu-steps", "gpu-profile", "gpu-peers", "gpu-encoders"} <= names
    assert speed_table({**committed(), "speed": {}}) == ""


def test_new_steps_are_beside_earlier_ones(report: dict[str, Any]) -> None:
    lines = steps_table(report).splitlines()
    assert "| earlier | 1.71 |" in lines
    assert "| today | 1.15 |" in lines
    assert "| today, int8 cache | 1.25 |" in lines
    assert lines[-1].startswith("| share of the bandwidth limit | ")
    assert not any("prompts" in line for line in lines)


def test_each_table_has_what_was_measured(report: dict[str, Any]) -> None:
    assert "| beams, fp16 |  | no |  |" in checks_table(report)
    assert "| llama-1.1b, fp16, 1 | 800 | 1.15 | 50 % |" in speed_table(report)
    assert "| 64 of 512 tokens, steps of 2048 | 250.0 | 131,072 |" in prompts(report)
    assert "| 1 rows | 0.500 |  |  |" in caches(report)
    assert profile(report).splitlines()[0].endswith("together | 1 | bert-base, 32 |")
    assert "| the device waits for the host | 1.00 | 1.00 |" in profile(report)
    operations = 2 * 24 * 12 * 1024**2 / 7e14
    one, two = (f"{100 * rate * operations:.0f} %" for rate in (1e6, 2e6))
    table = f"| bert-large, 32 × 128 | 1,000,000 | {one} | 2,000,000 | {two} |"
    assert table in encoders(report)


def test_peers_have_a_column_if_they_ran(report: dict[str, Any]) -> None:
    lines = peers(report).splitlines()
    assert lines[0] == "| model, sequences together | tokens/s | × transformers | × CT2 |"
    assert "| llama-1.1b, fp16, 1 | 800 |  | 3.50 |" in lines
    assert "| transformer-base, fp16, 8 | 5 | 9.00 |  |" in lines
    assert "| bert-large, fp16, 128 tokens, 32 | 1,000,000 | 1.25 |  |" in lines
