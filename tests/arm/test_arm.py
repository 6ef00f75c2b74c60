"""The kernels and a server on AArch64, which QEMU emulates: results are those of this machine."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.sync import Client
from tests.arm.machine import TOOLS, Machine, make
from tests.container.image import ROOT, missing_tools
from tests.serving import ServerProcess, server_process

pytestmark = pytest.mark.slow

KERNELS = (
    *("block_kernel", "block_embedding", "int8_kernel", "int8_packing", "candidate_kernel"),
    *("logits_kernel", "norm_kernel", "ssru_kernel", "token_sum_kernel"),
)
ATTENTION = (
    *("output_does_not_depend_on_chunking", "read_past_row_length", "nan_row"),
    *("cross_attention_supports", "rejects_invalid"),
)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if reason := missing_tools(TOOLS):
        pytest.skip(reason)
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix="arm-") as folder:
        yield make(Path(folder))


@pytest.fixture
def servers(
    machine: Machine, tiny_bundles: Path, compact_bundles: Path, tmp_path: Path
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """This machine's, and the emulated one's."""
    for bundle in (*tiny_bundles.iterdir(), *compact_bundles.iterdir()):
        if bundle.is_dir():
            shutil.copytree(bundle, tmp_path / bundle.name)
    emulated = server_process(
        tmp_path, python=machine.command(), folder=str(machine.code), **machine.variables
    )
    with server_process(tmp_path) as here, emulated as there:
        yield here, there


def test_kernels_match_the_standard_operators(machine: Machine) -> None:
    files = [f"tests/server/test_{name}.py" for name in KERNELS]
    options = ["-q", "-p", "no:cacheprovider"]
    for arguments in (
        files,
        ["tests/server/test_attention_kernel.py", "-k", " or ".join(ATTENTION)],
    ):
        done = subprocess.run(
            machine.command("-m", "pytest", *options, *arguments),
            env=machine.variables,
            cwd=machine.code,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        summary = done.stdout.splitlines()[-1]
        assert re.search(r"\d+ passed", summary), summary
        assert "skipped" not in summary, done.stdout


def test_a_server_answers_as_this_machine_does(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    """All three kinds in fp32; in int8 or int4; with a cache of 8 bits."""
    assert any("native kernels: int8_matmul, matmul," in line for line in servers[1].log)
    answers = []
    for server in servers:
        with Client(server.target) as client:
            texts = [
                output.text
                for model in ("dates", "dates-cache8")
                for output in client.translate(model, ["3 March 2021", "12 May 1987"]).outputs
            ]
            texts += [
                output.text
                for model in ("tiny-decoder", "decoder-int4", "decoder-cache8")
                for output in client.generate(model, ["7,", "12,"], max_new_tokens=8).outputs
            ]
            scores = [
                label.score
                for model in ("tiny-classifier", "classifier-int8")
                for output in client.classify(model, ["12", "7 8 9"]).outputs
                for label in output.labels
            ]
        answers.append((texts, scores))
    (texts, scores), (emulated_texts, emulated_scores) = answers
    assert texts[:2] == ["2021-03-03", "1987-05-12"]
    assert emulated_texts == texts
    assert emulated_scores == pytest.approx(scores, abs=2e-3)
