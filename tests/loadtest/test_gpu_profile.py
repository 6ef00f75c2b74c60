"""Where a device's time goes: the arithmetic over its kernels' intervals."""

from pathlib import Path
from typing import Any

import pytest
import torch

from loadtest.gpu.kernel_times import (
    Kernel,
    decode_steps,
    kernels_of_trace,
    kind_of,
    of_batches,
    of_decode,
    pauses,
)
from scripts import profiled_bench


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16>", "products"),
        ("void cublasLt::splitKreduce_kernel<32, 16>", "products"),
        ("linear_8_fp16", "products"),
        ("linear_norm_bf16", "products"),
        ("attend_8_fp16", "attention"),
        ("combine_parts_bf16", "attention"),
        ("split_fp16", "attention"),
        ("onnxruntime::contrib::cuda::H64::grp8_fp16::kernel_mha(unsigned int)", "attention"),
        ("void onnxruntime::contrib::cuda::UnpackRoPEAppend<__half, 16, 64>", "attention"),
        ("onnxruntime::contrib::cuda::GetSequenceLengths(int const*)", "attention"),
        ("void onnxruntime::contrib::cuda::AddBiasTranspose<Half4>", "attention"),
        ("void onnxruntime::contrib::cuda::TransposeCtx<float2>(int)", "attention"),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "attention"),
        ("void onnxruntime::contrib::cuda::UnpackQKVWithRoPEAndAppendKV<__half>", "attention"),
        ("norm_4_fp16", "norms"),
        ("activate_bf16", "activations"),
        ("best_token", "other"),
        ("Memcpy DtoH (Device -> Pinned)", "other"),
    ],
)
def test_kernels_are_classified_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_pauses_are_those_in_which_no_kernel_runs() -> None:
    overlapping = [Kernel("a", 0, 10), Kernel("b", 2, 3), Kernel("c", 12, 1), Kernel("d", 13, 5)]
    assert pauses(overlapping) == [2.0]
    assert pauses([]) == []


def step(start: float, wait: float = 1.0) -> list[Kernel]:
    """A step of 40 microseconds, of which 35 are kernels; ``wait`` more before the second."""
    return [
        Kernel("nvjet", start, 20),
        Kernel("norm_4_fp16", start + 20 + wait, 10),
        Kernel("best_token", start + 34 + wait, 5),
    ]


def test_a_decode_is_divided_at_the_likeliest_token() -> None:
    kernels = [*step(0), *step(100), *step(200), Kernel("Memcpy DtoH", 245, 1)]
    assert [len(each) for each in decode_steps(kernels[::-1], 1)] == [3, 3]
    with pytest.raises(ValueError, match="3 steps end with best_token, expected 4"):
        decode_steps(kernels, 3)


def test_the_largest_pause_of_a_step_is_the_hosts() -> None:
    found = of_decode([*step(0), *step(100), *step(200)], 2)
    assert found["step"] == pytest.approx(0.1)
    assert found["device"] == pytest.approx(0.04)  # from the first kernel to the last one's end
    assert found["products"] == pytest.approx(0.02)
    assert found["norms"] == pytest.approx(0.01)
    assert found["other"] == pytest.approx(0.005)
    parts = sum(found[part] for part in ("products", "norms", "other", "attention", "activations"))
    assert found["device"] - parts == pytest.approx(0.005)  # between kernels: 1 and 4 us
    assert found["launches"] == 3
    assert found["kernels"][0] == {"name": "nvjet", "ms": pytest.approx(0.02), "launches": 1.0}


def test_other_long_pauses_are_the_hosts_too() -> None:
    found = of_decode([*step(0, wait=15), *step(100, wait=15)], 1)
    waits = (100 - (34 + 15 + 5)) + 15
    assert found["step"] - found["device"] == pytest.approx(waits / 1e3)


def test_steps_that_follow_at_once_have_the_smallest_wait() -> None:
    found = of_decode([*step(0), *step(41), *step(82)], 2)
    assert found["step"] == pytest.approx(0.041)
    assert found["step"] - found["device"] == pytest.approx(0.004)  # the largest pause


def test_an_encoders_batches_are_divided_by_their_number() -> None:
    kernels = [Kernel("nvjet", start, 90) for start in (0, 95, 300)]
    found = of_batches(kernels, 3)
    assert found["step"] == pytest.approx(0.130)
    assert found["step"] - found["device"] == pytest.approx(115 / 3e3)
    assert found["products"] == pytest.approx(0.09)


def test_a_trace_has_kernels_and_copies() -> None:
    def event(kind: str, **fields: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": kind, "name": "x", "ts": "1.5", "dur": 2, **fields}

    events = [event("kernel"), event("gpu_memcpy"), event("cuda_runtime"), {"ph": "M", "name": "y"}]
    assert kernels_of_trace({"traceEvents": events}) == [Kernel("x", 1.5, 2.0)] * 2


async def test_the_profiled_engine_needs_a_gpu(tiny_bundles: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    bench = profiled_bench.ProfiledBench()
    bundle = tiny_bundles / "tiny-decoder" / "1"
    await bench.load({"model": str(bundle), "threads": 1})
    message = {"inputs": [[5, 6, 7]], "max_new_tokens": 4, "rounds": 1, "trace": tmp_path / "t"}
    with pytest.raises(RuntimeError, match="no CUDA device"):
        await bench.profile(message)
    bench.close()
