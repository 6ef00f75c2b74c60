"""The checks of ``loadtest gpu`` on ONNX Runtime's CUDA provider, without a GPU.

Kernels compute on the host. Streams work as late as possible, so that what is read or overwritten
too early shows.
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

# On a GPU, these are as other paths; and 70 sequences take the emulator too long.
SKIPPED = (
    "in a device's memory",
    "steps ahead, one row",
    "encoder of many texts, fp16",
    "most rows",
    "cross-attention, recorded steps",
)
CHUNKS = "chunked prefill"
# Each size of prompts and texts runs before it is recorded.
FEW_TOKENS = {"max_batched_tokens": 128, "max_padded_tokens": 128}

# Weights in blocks have the kernels that they have in decoders.
INTEGERS = ("cross-attention, int8", "cross-attention, int4", "encoder, int8", "encoder, int4")


def is_run(check: Check) -> bool:
    """Chunks of prompts depend on the precision of the cache alone."""
    if check.name in INTEGERS or any(part in check.name for part in SKIPPED):
        return False
    return check.label != CHUNKS or check.precision == "fp16"


CHECKS = {check.name: check for check in make_plan("cuda", PlanSize.FULL).checks if is_run(check)}


@pytest.fixture(scope="module")
def checker(root: Path) -> Iterator[ParityChecker]:
    """All bundles are built before: it would end the builder's processes with each check."""
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
    """Without warnings, which would tell that a path is not used."""
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
