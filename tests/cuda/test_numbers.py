"""The checks of ``loadtest gpu`` on ONNX Runtime's CUDA provider, without a GPU.

Kernels compute on the host. Work on streams is done as late as possible, so that reading or
overwriting data too early is noticed.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.gpu.deadline import Deadline
from loadtest.gpu.full_plan import make_plan
from loadtest.gpu.model_builder import ModelBuilder
from loadtest.gpu.parity_checks import ParityChecker
from loadtest.gpu.plan import Check, PlanSize
from tests.cuda.libraries import environment, onnxruntime_for_gpus

pytestmark = pytest.mark.slow

# Checks that take other paths on a GPU, or too long: the emulator is slow with 70 sequences.
SKIPPED = (
    "in a device's memory",
    "steps ahead, one row",
    "encoder of many texts, fp16",
    "most rows",
    "cross-attention, recorded steps",
)
CHUNKS = "chunked prefill"
# Small limits: each size of prompts and texts runs before it is recorded.
FEW_TOKENS = {"max_batched_tokens": 128, "max_padded_tokens": 128}

# Block-quantized weights use the same kernels as in decoders.
INTEGERS = ("cross-attention, int8", "cross-attention, int4", "encoder, int8", "encoder, int4")


def is_run(check: Check) -> bool:
    """Chunked prefill depends on the precision of the cache only."""
    if check.name in INTEGERS or any(part in check.name for part in SKIPPED):
        return False
    return check.label != CHUNKS or check.precision == "fp16"


CHECKS = {check.name: check for check in make_plan("cuda", PlanSize.FULL).checks if is_run(check)}


@pytest.fixture(scope="module")
def checker(root: Path) -> Iterator[ParityChecker]:
    """Builds all bundles first: each check would otherwise stop the builder's processes."""
    idle = ModelBuilder(root, "cuda", Deadline(1800))
    made = ParityChecker(idle, root, "cuda", Deadline(1800), reference_device="cpu")
    yield made
    made.close()


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes(
    checker: ParityChecker,
    builder: ModelBuilder,
    cuda_libraries: Path,
    root: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any warning would mean that a fast path is not used."""
    check = replace(CHECKS[name], config={**FEW_TOKENS, **CHECKS[name].config})
    builder.bundle(check.size, check.precision, check.kv_cache)
    builder.model(check.size)
    needed = environment(cuda_libraries, onnxruntime_for_gpus(), computes=True)
    for variable, value in needed.items():
        monkeypatch.setenv(variable, value)
    result = checker.check(check)
    assert result["passed"], result
    log = (root / "logs" / "bench.log").read_text().splitlines()
    assert [line for line in log if "onnxruntime:" not in line] == []
