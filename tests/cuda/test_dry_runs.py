"""Runs on ONNX Runtime's CUDA provider, without a GPU: copies, launches and captures."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from transformers import GraniteMoeConfig, GraniteMoeForCausalLM

from export.bundle_writer import write_bundle
from model.bundle import Device, Precision
from server.engine.failures import OUT_OF_MEMORY
from server.engine.gpu.buckets import TextBuckets
from server.engine.gpu.padded_prompts import MAX_PROMPT_TOKENS
from server.engine.gpu.padded_sources import MAX_SOURCE_TOKENS
from server.out_of_memory import is_out_of_memory
from server.runtime.cuda.attention_checks import AttentionKernel
from tests.cuda.conftest import Probe
from tests.cuda.libraries import environment, onnxruntime_for_gpus
from tests.cuda.probe import MAX_LENGTH, NUM_SLOTS, Call, Reply, Request
from tests.families import gated, test_granite
from tests.families.harness import imported

pytestmark = pytest.mark.slow
Make = Callable[..., str]

# Operators that compute shapes, and may therefore run on the host.
SHAPES = {"Shape", "Squeeze", "Unsqueeze", "Concat", "Cast", "Gather", "Reshape"}
NUM_LAYERS = 2
NUM_STEPS = 16  # sizes of decode steps
NUM_RUNS = 6  # per job: one over the prompt, then steps
# Kernels do nothing, so no probabilities are finite: no kinds that need them.
GENERATION = ("greedy", "sampled")


def captures(calls: Sequence[Call]) -> list[list[str]]:
    """For each capture, its kernels and the other calls in it."""
    found: list[list[str]] = []
    is_open = False
    for name, *about in calls:
        if name == "cudaStreamBeginCapture":
            found.append([])
        is_open = name == "cudaStreamBeginCapture" or (is_open and name != "cudaStreamEndCapture")
        if is_open and name == "kernel":
            found[-1].append(about[0])
        elif is_open and name.startswith("cudaMem"):
            found[-1].append(name)
    return found


def names(calls: Sequence[Call]) -> list[str]:
    return [name for name, *_ in calls]


def assert_clean(reply: Reply) -> None:
    """Checks that nothing failed or was refused, and that only shapes are computed on the host."""
    assert reply.warnings == []
    assert not any(reply.failures.values()), reply.failures
    for operators in reply.host_operators.values():
        assert set(operators) <= SHAPES
    for calls in (reply.loaded, reply.prepared, *reply.ran.values()):
        assert "violation" not in names(calls)


@pytest.mark.parametrize("name", ["bert-check", "causal-check"])
def test_encoders_are_recorded(run_probe: Probe, bundle_of: Make, name: str) -> None:
    reply = run_probe(Request(bundle_of(name), jobs=("greedy", "tokens")))
    assert_clean(reply)
    recorded = captures(reply.prepared)
    assert len(recorded) == reply.num_graphs > 100
    assert not any(kernel.startswith("cudaMemcpy") for kernels in recorded for kernel in kernels)
    assert names(reply.ran["greedy"]) == [
        *("cudaSetDevice", "cudaMemcpyAsync:in", "cudaGraphLaunch", "cudaMemcpyAsync:out"),
        *("cudaEventRecord", "cudaEventSynchronize"),
    ]


def test_the_host_waits_for_an_encoder_at_its_end_only(run_probe: Probe, bundle_of: Make) -> None:
    reply = run_probe(Request(bundle_of("bert-check"), {"cuda_graphs": False}))
    assert_clean(reply)
    calls = names(reply.ran["greedy"])
    first, last = calls.index("kernel"), len(calls) - calls[::-1].index("kernel")
    assert set(calls[first:last]) <= {"kernel", "cudaMalloc", "cudaSetDevice"}
    assert set(calls[last:]) == {"cudaMemcpyAsync:out", "cudaStreamSynchronize"}


@pytest.mark.parametrize(
    ("attentions", "expected"),
    [
        (tuple(AttentionKernel), {"attend_text": 1}),
        ((AttentionKernel.MEMORY_EFFICIENT,), {"split": 1, "attention_kernel_batched_impl": 1}),
        ((), {"split": 1, "softmax": 1, "AddBiasTranspose": 3}),
    ],
    ids=["native", "memory-efficient", "stored scores"],
)
def test_attention_of_an_encoder(
    run_probe: Probe,
    bundle_of: Make,
    attentions: tuple[AttentionKernel, ...],
    expected: dict[str, int],
) -> None:
    """Native attention splits no heads; without either kernel, a softmax is between products."""
    names = tuple(kernel.value for kernel in attentions)
    reply = run_probe(Request(bundle_of("bert-check"), attentions=names))
    parts = ("attend_text", "split", "attention_kernel_batched_impl", "softmax", "AddBiasTranspose")
    count = Counter(
        part for part in parts for kernel in captures(reply.prepared)[0] if part in kernel
    )
    assert count == {part: number * NUM_LAYERS for part, number in expected.items()}


@pytest.mark.parametrize(
    ("name", "kv_cache", "max_tokens"),
    [
        ("llama-check", "float", MAX_PROMPT_TOKENS),
        ("llama-check", "int8", MAX_PROMPT_TOKENS),
        ("bart-check", "float", MAX_SOURCE_TOKENS),
    ],
)
def test_steps_prompts_and_sources_are_recorded(
    run_probe: Probe, bundle_of: Make, name: str, kv_cache: str, max_tokens: int
) -> None:
    reply = run_probe(Request(bundle_of(name, "fp16", kv_cache), jobs=GENERATION))
    assert_clean(reply)
    recorded = captures(reply.prepared)
    num_graphs = NUM_STEPS + len(TextBuckets.of(max_tokens, MAX_LENGTH, NUM_SLOTS))
    assert len(recorded) == reply.num_graphs == num_graphs
    assert not any(kernel.startswith("cudaMemcpy") for kernels in recorded for kernel in kernels)


def test_prompts_and_a_step_are_one_launch_each(run_probe: Probe, bundle_of: Make) -> None:
    """Inputs are copied from the host once, and the tokens of each step to the host.

    One kernel copies the keys and values of prompts to the slots.
    """
    reply = run_probe(Request(bundle_of("llama-check")))
    calls = reply.ran["greedy"]
    run = ["cudaSetDevice", "cudaMemcpyAsync:in", "cudaGraphLaunch", "cudaMemcpyAsync:out"]
    run += ["cudaEventRecord", "cudaEventSynchronize"]
    assert names(calls[:6]) == run
    assert calls[7][:2] == ["kernel", "triune::copy_parts"]
    assert calls[8] == ["cudaStreamQuery", "default"]
    begin = names(calls).index("cudaGraphLaunch", 8)
    assert names(calls[begin - 1 : begin]) == ["cudaMemcpyAsync:in"]
    assert set(names(calls[begin:])) == set(run) - {"cudaMemcpyAsync:in"}
    assert names(calls).count("cudaGraphLaunch") == NUM_RUNS


def test_sources_are_one_launch(run_probe: Probe, bundle_of: Make) -> None:
    """One kernel copies the outputs of the encoder to the slots."""
    calls = run_probe(Request(bundle_of("bart-check"))).ran["greedy"]
    run = ["cudaSetDevice", "cudaMemcpyAsync:in", "cudaGraphLaunch", "cudaEventRecord"]
    assert names(calls[:5]) == [*run, "cudaEventSynchronize"]
    assert calls[6][:2] == ["kernel", "triune::copy_parts"]
    assert names(calls).count("cudaGraphLaunch") == 1 + NUM_RUNS


def test_sampling_is_another_launch(run_probe: Probe, bundle_of: Make) -> None:
    """Sampling reads the logits in place; only parameters and tokens are copied."""
    calls = run_probe(Request(bundle_of("llama-check"), jobs=("greedy", "sampled"))).ran["sampled"]
    launches = [index for index, (name, *_) in enumerate(calls) if name == "cudaGraphLaunch"]
    assert len(launches) > 2 * 4
    assert set(names(calls[launches[-4] :])) == {
        *("cudaSetDevice", "cudaMemcpyAsync:in", "cudaGraphLaunch", "cudaMemcpyAsync:out"),
        *("cudaEventRecord", "cudaEventSynchronize"),
    }


def test_kernels_of_a_step(run_probe: Probe, bundle_of: Make) -> None:
    """With up to 8 sequences, a Llama layer takes 5 kernels, or 6 if attention splits the cache.

    Outside the layers: embedding, norm, logits, their cast, best tokens, next inputs.
    """
    recorded = captures(run_probe(Request(bundle_of("llama-check"))).prepared)[:NUM_STEPS]
    few, many = min(recorded, key=len), max(recorded, key=len)
    products = ["triune::linear_8_fp16", "triune::linear_norm_fp16", "triune::linear_8_fp16"]
    layer = ["triune::linear_norm_fp16", "triune::attend_64_fp16", *products]
    assert few[1:-5] == layer * NUM_LAYERS
    assert len(few) == 5 * NUM_LAYERS + 6
    layer.insert(2, "triune::combine_parts_fp16")
    assert [few[0], *layer * NUM_LAYERS, *few[-5:]] in recorded
    layer = ["triune::norm_1_fp16", "cublasGemmEx", *layer[1:3], "cublasGemmEx"]
    layer += ["triune::norm_1_fp16", "cublasGemmEx", "triune::activate_fp16", "cublasGemmEx"]
    assert many[1:-5] == layer * NUM_LAYERS


def test_products_of_experts_are_timed_when_a_model_is_loaded(
    run_probe: Probe, tmp_path: Path
) -> None:
    """One timing for each power of two of a run's tokens, and of the rows of the last layer."""
    config = GraniteMoeConfig(**gated.SMALL, **test_granite.EXPERTS)
    with imported(GraniteMoeForCausalLM(config)) as checkpoint:
        bundle = write_bundle(
            *(checkpoint, tmp_path / "bundles"),
            precision=Precision.FP16,
            device=Device.CUDA,
            accept_loss=True,
        )
    reply = run_probe(Request(str(bundle), {"cuda_graphs": False}))
    assert_clean(reply)
    loaded, served = (
        sum(name == "kernel" and "GemmUniversal" in about[0] for name, *about in calls)
        for calls in (reply.loaded, reply.ran["greedy"])
    )
    assert 0 < served <= 2 * NUM_LAYERS * NUM_RUNS
    assert loaded > 10 * served
    assert "cudaMalloc" not in names(reply.ran["greedy"])


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_a_device_without_memory_is_told(
    run_probe: Probe, bundle_of: Make, cuda_graphs: bool
) -> None:
    """The error is that of ONNX Runtime's allocator; recorded graphs need no more memory."""
    config = {"cuda_graphs": cuda_graphs}
    request = Request(bundle_of("bert-check"), config, memory_bytes=0, warms_up=cuda_graphs)
    reply = run_probe(request)
    assert reply.failures["greedy"] == ([] if cuda_graphs else [OUT_OF_MEMORY.failure] * 3)


def run_python(code: str, libraries: Path) -> "subprocess.CompletedProcess[str]":
    """Runs ``code`` in another process, with the CUDA stand-in."""
    needed = environment(libraries, onnxruntime_for_gpus(), computes=False)
    return subprocess.run(
        (sys.executable, "-c", code),
        env={**os.environ, **needed},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_device_without_the_cuda_runtime_is_refused(cuda_libraries: Path) -> None:
    command = (
        "from server.runtime.cuda import cudart; cudart._LIBRARIES = (); "
        "from server.runtime.ort.backend import OrtBackend; OrtBackend('cuda', 1)"
    )
    done = run_python(command, cuda_libraries)
    message = "StartupError: device 'cuda' cannot be used: the CUDA runtime is not loaded"
    assert message in done.stderr


_FAILED_LAUNCH = """
import ctypes
from server.runtime.kernels.library import CUDA_LIBRARY
from tests.cuda.libraries import StandIn

StandIn().fail("kernel", 2)
copy = ctypes.CDLL(str(CUDA_LIBRARY)).triune_copy
copy.restype = ctypes.c_char_p
print(copy((ctypes.c_int64 * 6)(), ctypes.c_int64(1), None).decode())
"""


def test_a_kernel_that_finds_no_memory_says_so(cuda_libraries: Path) -> None:
    """The driver may load a kernel's code when it is first launched."""
    done = run_python(_FAILED_LAUNCH, cuda_libraries)
    done.check_returncode()
    assert done.stdout.strip() == "copy_parts: error 2, CUDA_ERROR_OUT_OF_MEMORY"
    assert is_out_of_memory(RuntimeError(done.stdout))


@pytest.mark.parametrize("name", ["llama-check", "bart-check", "bert-check"])
def test_a_removed_model_leaves_no_memory_behind(
    run_probe: Probe, bundle_of: Make, name: str
) -> None:
    """Only the device's small shared graphs, which the next model uses too, keep memory."""
    jobs = ("greedy",) if name == "bert-check" else GENERATION
    used = run_probe(Request(bundle_of(name), jobs=jobs, num_loads=4)).used_bytes
    assert used[1:] == [used[1]] * 3
