"""How fast a model could be on this card: each byte read once, each product at the best rate. Pure.

The products of attention itself are left out, which makes the floor of the time a little too low.
"""

from collections.abc import Mapping
from typing import Any

from loadtest.gpu.model_sizes import Family
from loadtest.gpu.plan import Benchmark

WEIGHT_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5625}
"""Of a weight; int4 in blocks of 32 with a scale of 16 bits."""
_FLOAT_BYTES = {"fp32": 4.0, "bf16": 2.0}


def roofline_rate(
    benchmark: Benchmark, batch: int, device: str, ceilings: Mapping[str, Any]
) -> float:
    """Tokens per second that nothing exceeds: decoded ones, or an encoder's.

    Of an encoder-decoder, whose source is read first, those of the whole.
    """
    computed = _computed(benchmark.precision, device)
    bandwidth: float = ceilings["bytes_per_second"]
    operations: float = ceilings["operations_per_second"][computed]
    size = benchmark.size
    cache_bytes = 1.0 if benchmark.kv_cache == "int8" else _FLOAT_BYTES.get(computed, 2.0)

    def seconds(parameters: int, num_tokens: float, read_bytes: float = 0.0) -> float:
        weights = parameters * WEIGHT_BYTES[benchmark.precision]
        return max((weights + read_bytes) / bandwidth, 2 * parameters * num_tokens / operations)

    num_read = batch * benchmark.num_tokens
    if size.family == Family.ENCODER:
        return num_read / seconds(size.encoder, num_read)
    # In the middle of the output.
    own = benchmark.num_new_tokens / 2
    if size.family == Family.DECODER:
        own += benchmark.num_tokens
    values = size.cache_values * own + size.cross_values * benchmark.num_tokens
    step = seconds(size.decoder, batch, batch * values * cache_bytes)
    if size.family == Family.DECODER:
        return batch / step
    encode = seconds(size.encoder, num_read)
    return batch * benchmark.num_new_tokens / (encode + benchmark.num_new_tokens * step)


def _computed(precision: str, device: str) -> str:
    """What products are made in."""
    if precision in ("int8", "int4"):
        return "fp16" if device.startswith("cuda") else "fp32"
    # A CPU has no fast products of 16 bits: weights are only stored so.
    return precision if device.startswith("cuda") else "fp32"
