"""The losses at which an export refuses a precision: docs/decisions/0103-fidelity.md."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from export.errors import FidelityError, ParityError
from model.bundle import Fidelity, KvCache, Parity, Precision

# Top-1 agreement has a limit only if fp32's mean probability of its own answers reaches this value:
# without training, the best tokens are nearly tied, and any rounding swaps them.
MIN_MEAN_PROBABILITY = 0.5


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits for the figures of :class:`model.bundle.Fidelity` with the same names."""

    top1_agreement: float
    kl_divergence: float
    rms_logprob_difference: float
    mean_cosine: float
    max_probability_difference: float
    relative_error: float  # of each matrix


_FP16 = Limits(
    top1_agreement=0.97,
    kl_divergence=0.01,
    rms_logprob_difference=0.1,
    mean_cosine=0.999,
    max_probability_difference=0.1,
    relative_error=0.02,
)
_BF16 = Limits(
    top1_agreement=0.93,
    kl_divergence=0.05,
    rms_logprob_difference=0.25,
    mean_cosine=0.99,
    max_probability_difference=0.2,
    relative_error=0.02,
)
_INT8 = replace(_BF16, mean_cosine=0.98, max_probability_difference=0.3, relative_error=0.15)
_INT8_CACHE = replace(_INT8, top1_agreement=0.85, kl_divergence=0.1, rms_logprob_difference=0.4)
_INT4 = Limits(
    top1_agreement=0.75,
    kl_divergence=0.3,
    rms_logprob_difference=1.0,
    mean_cosine=0.95,
    max_probability_difference=0.6,
    relative_error=0.25,
)
LIMITS: dict[Precision, Limits] = {
    Precision.FP32: _FP16,
    Precision.FP16: _FP16,
    Precision.BF16: _BF16,
    Precision.INT8: _INT8,
    Precision.INT4: _INT4,
}


def check_finite(parity: Parity) -> None:
    """Raises ``ParityError`` if a figure is NaN or infinite, as for outputs that are all 0."""
    for name, value in msgspec.structs.asdict(parity).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ParityError(f"{name} is {value}: the model computes nothing that is usable")


def limits_of(precision: Precision, kv_cache: KvCache) -> Limits:
    """The limits for a bundle; an int8 cache may lose more than any weights but 4-bit ones."""
    if kv_cache == KvCache.INT8 and precision != Precision.INT4:
        return _INT8_CACHE
    return LIMITS[precision]


def exceeded_limits(fidelity: Fidelity, limits: Limits) -> tuple[str, ...]:
    """A sentence for each limit that ``fidelity`` does not meet; a NaN meets none."""
    return tuple(_exceeded(fidelity, limits))


def _exceeded(fidelity: Fidelity, limits: Limits) -> Iterator[str]:
    floors = ["mean_cosine"]
    if (fidelity.mean_probability or 0.0) >= MIN_MEAN_PROBABILITY:
        floors.append("top1_agreement")
    for name in floors:
        value, limit = getattr(fidelity, name), getattr(limits, name)
        if value is not None and not value >= limit:
            yield f"{name} is {value:.4f}, below {limit}"
    for kind, figures in (fidelity.other_vectors or {}).items():
        if not figures.mean_cosine >= limits.mean_cosine:
            yield f"mean_cosine of {kind} is {figures.mean_cosine:.4f}, below {limits.mean_cosine}"
    for name in ("kl_divergence", "rms_logprob_difference", "max_probability_difference"):
        value, limit = getattr(fidelity, name), getattr(limits, name)
        if value is not None and not value <= limit:
            yield f"{name} is {value:.4f}, above {limit}"
    for matrix in fidelity.worst_matrices:
        if not matrix.relative_error <= limits.relative_error:
            yield (
                f"the relative error of {matrix.name} is {matrix.relative_error:.3f}, "
                f"above {limits.relative_error}"
            )


def checked_fidelity(
    fidelity: Fidelity | None, precision: Precision, kv_cache: KvCache, *, accept_loss: bool
) -> Fidelity | None:
    """``fidelity``, with the list of limits that it exceeds.

    Raises:
        FidelityError: it exceeds limits, and ``accept_loss`` is false.
    """
    if fidelity is None:
        return None
    exceeded = exceeded_limits(fidelity, limits_of(precision, kv_cache))
    if exceeded and not accept_loss:
        raise FidelityError(
            f"{precision} loses too much: {'; '.join(exceeded)}. Choose a finer precision, or "
            "accept the loss with --accept-loss"
        )
    return msgspec.structs.replace(fidelity, exceeded_limits=exceeded)
