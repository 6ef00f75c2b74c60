"""Roofline of a workload: each byte read once, each multiply-add at the machine's peak rate.

It is an upper bound of the rate of any engine that reads its weights in this precision. The
operations of attention itself are left out, which makes it slightly too high. In the report it
is called ``floor``, for the floor of the time.

Source: Williams et al., "Roofline: An Insightful Visual Performance Model", 2009.
"""

from collections.abc import Mapping
from typing import Any

from loadtest.compare.workloads import MODEL_SIZES, Workload, WorkloadKind

WEIGHT_BYTES = {"fp32": 4.0, "int8": 1.0, "int4": 0.5625}
"""Bytes per weight; int4 has blocks of 32 with a 16-bit scale."""
_CACHE_BYTES = 4.0


def roofline_rate(workload: Workload, ceilings: Mapping[str, Any]) -> float | None:
    """Upper bound of tokens per second, of the tokens that ``workload`` counts.

    ``None`` if the peak rate at this precision is unknown, or for a mixed workload.

    Args:
        ceilings: ``bytes_per_second``, and ``operations_per_second`` by precision.
    """
    if workload.kind == WorkloadKind.MIXED:
        return None
    rates: dict[str, float] = ceilings.get("operations_per_second", {})
    # Four-bit weights are multiplied as int8.
    operations_rate = rates.get("int8" if workload.precision == "int4" else workload.precision)
    if operations_rate is None:
        return None
    bandwidth: float = ceilings["bytes_per_second"]
    sizes, rows = MODEL_SIZES[workload.task], workload.batch * workload.beams

    def seconds(parameters: int, num_multiply_adds: float, cache_values: float = 0.0) -> float:
        read = parameters * WEIGHT_BYTES[workload.precision] + cache_values * _CACHE_BYTES
        return max(read / bandwidth, 2.0 * num_multiply_adds / operations_rate)

    num_inputs = sum(workload.lengths)
    if workload.kind == WorkloadKind.EMBED:
        return num_inputs / seconds(sizes.encoder, sizes.encoder * num_inputs)
    target = sizes.decoder + sizes.head
    if workload.kind == WorkloadKind.PREFILL:
        multiply_adds = sizes.decoder * num_inputs + sizes.head * workload.batch
        return num_inputs / seconds(target, multiply_adds)
    # The cache at the middle of the output; cross-attention reads the whole source.
    length = num_inputs / workload.batch + workload.num_new_tokens / 2
    step = seconds(target, target * rows, rows * length * sizes.cache_values_per_token)
    if workload.kind == WorkloadKind.DECODE:
        return workload.batch / step
    encoding = seconds(sizes.encoder, sizes.encoder * num_inputs)
    return workload.batch * workload.num_new_tokens / (encoding + workload.num_new_tokens * step)
