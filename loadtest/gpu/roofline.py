"""Roofline of a model on a device: each byte read once, each operation at the peak rate. Pure.

The operations of attention itself are left out, which makes the bound slightly too high.

Source: Williams et al., "Roofline: An Insightful Visual Performance Model", 2009.
"""

from collections.abc import Mapping
from typing import Any

from loadtest.gpu.model_sizes import Family
from loadtest.gpu.plan import Benchmark

WEIGHT_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5625}
"""Bytes per weight; int4 has blocks of 32 with a 16-bit scale."""
_FLOAT_BYTES = {"fp32": 4.0, "bf16": 2.0}


def roofline_rate(
    benchmark: Benchmark, batch: int, device: str, ceilings: Mapping[str, Any]
) -> float:
    """Upper bound of tokens per second: output tokens, or input tokens of an encoder.

    For an encoder-decoder the time of the encoder is included.
    """
    computed = _compute_precision(benchmark.precision, device)
    bandwidth: float = ceilings["bytes_per_second"]
    operations: float = ceilings["operations_per_second"][computed]
    size = benchmark.size
    cache_bytes = 1.0 if benchmark.kv_cache == "int8" else _FLOAT_BYTES.get(computed, 2.0)

    def seconds(parameters: int, num_tokens: float, read_bytes: float = 0.0) -> float:
        weights = parameters * WEIGHT_BYTES[benchmark.precision]
        return max((weights + read_bytes) / bandwidth, 2 * parameters * num_tokens / operations)

    num_inputs = batch * benchmark.num_tokens
    if size.family == Family.ENCODER:
        return num_inputs / seconds(size.encoder, num_inputs)
    # The cache at the middle of the output.
    own = benchmark.num_new_tokens / 2
    if size.family == Family.DECODER:
        own += benchmark.num_tokens
    values = size.cache_values * own + size.cross_values * benchmark.num_tokens
    step = seconds(size.decoder, batch, batch * values * cache_bytes)
    if size.family == Family.DECODER:
        return batch / step
    encode = seconds(size.encoder, num_inputs)
    return batch * benchmark.num_new_tokens / (encode + benchmark.num_new_tokens * step)


def _compute_precision(precision: str, device: str) -> str:
    """The precision of the arithmetic."""
    if precision in ("int8", "int4"):
        return "fp16" if device.startswith("cuda") else "fp32"
    # CPUs lack fast 16-bit arithmetic: 16 bits are only a storage format.
    return precision if device.startswith("cuda") else "fp32"
