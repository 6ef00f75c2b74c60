"""Roofline of a workload: each byte read once, each multiply-add at the machine's peak rate.

It is an upper bound of the rate of any engine at this precision of the weights: the operations of
attention itself and the scales of quantized weights are left out. In the report it is called
``floor``, for the floor of the time.

Source: Williams et al., "Roofline: An Insightful Visual Performance Model", 2009.
"""

from typing import Any

from loadtest.compare.ceilings import bandwidth, peak_operations
from loadtest.compare.workloads import Workload, WorkloadKind

WEIGHT_BYTES = {"int8": 1.0, "int4": 0.5}
"""Bytes per weight. In fp32 it depends on the model: ``ModelSize.lossless_bytes``."""
CACHE_BYTES = {"fp32": 2.0, "int8": 1.0, "int4": 1.0}
"""Bytes per element of the smallest cache among the candidates."""
_WITHOUT_ROOFLINE = (WorkloadKind.MIXED, WorkloadKind.TEXT)


def roofline_rate(workload: Workload, ceilings: dict[str, Any]) -> float | None:
    """Upper bound of tokens per second, of the tokens that ``workload`` counts.

    ``None`` for a workload whose number of tokens in each step is not known, or if ``ceilings``
    has only the reason why nothing was measured.
    """
    if workload.kind in _WITHOUT_ROOFLINE or "operations_per_second" not in ceilings:
        return None
    operations_rate = peak_operations(ceilings, workload.precision)
    sizes, rows = workload.model, workload.batch * workload.beams
    weight_bytes = WEIGHT_BYTES.get(workload.precision, sizes.lossless_bytes)

    def seconds(parameters: int, num_multiply_adds: float, cache_values: float = 0.0) -> float:
        read = parameters * weight_bytes + cache_values * CACHE_BYTES[workload.precision]
        return max(read / bandwidth(ceilings, read), 2.0 * num_multiply_adds / operations_rate)

    num_inputs = sum(workload.lengths)
    if workload.kind == WorkloadKind.EMBED:
        return num_inputs / seconds(sizes.encoder, sizes.encoder * num_inputs)
    target = sizes.decoder + sizes.head
    if workload.kind == WorkloadKind.PREFILL:
        multiply_adds = sizes.decoder * num_inputs + sizes.head * workload.batch
        return num_inputs / seconds(target, multiply_adds)
    # The cache at the middle of the output; cross-attention reads the whole source. Beams may
    # share what they have in common.
    length = num_inputs / workload.batch + workload.num_new_tokens / 2
    cached = workload.batch * length * sizes.cache_values_per_token
    step = seconds(target, target * rows, cached)
    if workload.kind == WorkloadKind.DECODE:
        return workload.batch / step
    # All beams of a source are the same in the first step.
    steps = seconds(target, target * workload.batch) + (workload.num_new_tokens - 1) * step
    encoding = seconds(sizes.encoder, sizes.encoder * num_inputs)
    return workload.batch * workload.num_new_tokens / (encoding + steps)
