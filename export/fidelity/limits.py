"""How much a precision may lose before an export refuses it. Measurements: docs/decisions/0103."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from export.errors import FidelityError
from model.bundle import Fidelity, Precision

# Top-1 agreement is judged only where fp32 is this sure of its own answers: without training, the
# best tokens are nearly tied, and any rounding swaps them.
MIN_MEAN_PROBABILITY = 0.5


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the figures of :class:`model.bundle.Fidelity` with the same names."""

    top1_agreement: float
    kl_divergence: float
    rms_logprob_difference: float
    mean_cosine: float
    relative_error: float


_HALF = Limits(
    top1_agreement=0.97,
    kl_divergence=0.01,
    rms_logprob_difference=0.1,
    mean_cosine=0.999,
    relative_error=0.02,
)
LIMITS: dict[Precision, Limits] = {
    Precision.FP32: _HALF,
    Precision.FP16: _HALF,
    Precision.BF16: _HALF,
    Precision.INT8: Limits(
        top1_agreement=0.85,
        kl_divergence=0.1,
        rms_logprob_difference=0.4,
        mean_cosine=0.98,
        relative_error=0.2,
    ),
    Precision.INT4: Limits(
        top1_agreement=0.7,
        kl_divergence=0.4,
        rms_logprob_difference=1.0,
        mean_cosine=0.9,
        relative_error=0.35,
    ),
}


def exceeded_limits(fidelity: Fidelity, limits: Limits) -> tuple[str, ...]:
    """A sentence for each limit that ``fidelity`` does not meet; a NaN meets none."""
    return tuple(_exceeded(fidelity, limits))


def _exceeded(fidelity: Fidelity, limits: Limits) -> Iterator[str]:
    is_sure = (fidelity.mean_probability or 0.0) >= MIN_MEAN_PROBABILITY
    floors = [("mean_cosine", fidelity.mean_cosine, limits.mean_cosine)]
    if is_sure:
        floors.append(("top1_agreement", fidelity.top1_agreement, limits.top1_agreement))
    for name, value, floor in floors:
        if value is not None and not value >= floor:
            yield f"{name} is {value:.4f}, below {floor}"
    for name, value, ceiling in (
        ("kl_divergence", fidelity.kl_divergence, limits.kl_divergence),
        (
            "rms_logprob_difference",
            fidelity.rms_logprob_difference,
            limits.rms_logprob_difference,
        ),
    ):
        if value is not None and not value <= ceiling:
            yield f"{name} is {value:.4f} nats, above {ceiling}"
    for matrix in fidelity.worst_matrices:
        if not matrix.relative_error <= limits.relative_error:
            yield (
                f"the relative error of {matrix.name} is {matrix.relative_error:.3f}, "
                f"above {limits.relative_error}"
            )


def checked_fidelity(
    fidelity: Fidelity | None, precision: Precision, *, accept_loss: bool
) -> Fidelity | None:
    """``fidelity`` with the limits of ``precision`` that it exceeds.

    Raises:
        FidelityError: there are such limits, and not ``accept_loss``.
    """
    if fidelity is None:
        return None
    exceeded = exceeded_limits(fidelity, LIMITS[precision])
    if exceeded and not accept_loss:
        raise FidelityError(
            f"{precision} loses too much: {'; '.join(exceeded)}. Choose a finer precision, or "
            "accept the loss with --accept-loss"
        )
    return msgspec.structs.replace(fidelity, exceeded_limits=exceeded)
