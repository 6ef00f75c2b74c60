"""How fast a work could be: every byte read once, every product at the machine's best rate.

``floor`` is a rate, so the floor of the time is a ceiling here: no engine that reads its weights
in this precision and multiplies at this rate is faster. The products of the attention itself are
left out, which makes it a little too high.
"""

from collections.abc import Mapping
from typing import Any

from loadtest.compare.workloads import MODEL_SIZES, Workload, WorkloadKind

WEIGHT_BYTES = {"fp32": 4.0, "int8": 1.0, "int4": 0.5625}
"""Of a weight; int4 in blocks of 32 with a scale of 16 bits."""
_CACHE_BYTES = 4.0


def roofline_rate(workload: Workload, ceilings: Mapping[str, Any]) -> float | None:
    """Tokens per second, of those that ``workload`` counts. ``None``: no rate at this precision,
    or rows that come and go."""
    if workload.kind == WorkloadKind.MIXED:
        return None
    rates: dict[str, float] = ceilings.get("operations_per_second", {})
    # Four-bit weights are multiplied as int8.
    operations_rate = rates.get("int8" if workload.precision == "int4" else workload.precision)
    if operations_rate is None:
        return None
    bandwidth: float = ceilings["bytes_per_second"]
    sizes, rows = MODEL_SIZES[workload.task], workload.batch * workload.beams

    def seconds(parameters: int, num_products: float, cache_values: float = 0.0) -> float:
        read = parameters * WEIGHT_BYTES[workload.precision] + cache_values * _CACHE_BYTES
        return max(read / bandwidth, 2.0 * num_products / operations_rate)

    num_inputs = sum(workload.lengths)
    if workload.kind == WorkloadKind.EMBED:
        return num_inputs / seconds(sizes.encoder, sizes.encoder * num_inputs)
    target = sizes.decoder + sizes.head
    if workload.kind == WorkloadKind.PREFILL:
        products = sizes.decoder * num_inputs + sizes.head * workload.batch
        return num_inputs / seconds(target, products)
    # The cache of the middle of the output; of the cross-attention, the whole source.
    length = num_inputs / workload.batch + workload.num_new_tokens / 2
    step = seconds(target, target * rows, rows * length * sizes.cache_values_per_token)
    if workload.kind == WorkloadKind.DECODE:
        return workload.batch / step
    encoding = seconds(sizes.encoder, sizes.encoder * num_inputs)
    return workload.batch * workload.num_new_tokens / (encoding + workload.num_new_tokens * step)
