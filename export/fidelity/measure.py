"""Measures how close a bundle's graphs are to the fp32 graphs, for ``parity.json``.

``figures`` compares arrays, ``limits`` has the losses that an export refuses, and
``python -m export.fidelity FP32 OTHER`` compares two bundles.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict

import msgspec
import numpy as np

from export.fidelity.encoders import compare_encoders
from export.fidelity.generation import compare_generation
from export.fidelity.matrices import decoder_errors, encoder_errors, kind_of
from export.fidelity.subject import GraphFolder, Subject
from model.bundle import Fidelity, MatrixError, ScoreFunction
from model.config import Kind
from model.parity import VectorFidelity

NUM_WORST = 5
_DETAILS = ("worst_matrices", "matrix_errors", "exceeded_limits", "other_vectors")


def measure_fidelity(
    subject: Subject, reference: GraphFolder, other: GraphFolder, *, by_matrix: bool
) -> Fidelity | None:
    """Compares the graphs ``other`` with ``reference``, the fp32 graphs of the same model.

    Args:
        by_matrix: whether ``other`` was converted from ``reference`` and computes in fp32, so
            that its linear maps can be compared one by one.

    Returns:
        None if there is nothing to compare: the model's tokenizer knows none of the texts.
    """
    if subject.kind == Kind.ENCODER:
        return _encoder(subject, reference, other, by_matrix=by_matrix)
    return _generator(subject, reference, other, by_matrix=by_matrix)


def figures(fidelity: Fidelity) -> dict[str, str]:
    """The measured figures as text, by name."""
    names = (name for name in fidelity.__struct_fields__ if name not in _DETAILS)
    values = {name: getattr(fidelity, name) for name in names}
    for kind, others in (fidelity.other_vectors or {}).items():
        values |= {f"{name} of {kind}": x for name, x in msgspec.structs.asdict(others).items()}
    return {
        name: f"{value:.4f}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None and (name, value) != ("num_tokens", 0)
    }


def _generator(
    subject: Subject, reference: GraphFolder, other: GraphFolder, *, by_matrix: bool
) -> Fidelity | None:
    found = compare_generation(subject, reference, other)
    if found is None:
        return None
    errors = decoder_errors(reference, other, found.inputs, found.tokens) if by_matrix else {}
    return Fidelity(
        num_texts=found.num_texts,
        num_tokens=found.logits.num_tokens,
        top1_agreement=found.logits.top1_agreement,
        kl_divergence=found.logits.kl_divergence,
        rms_logprob_difference=found.logits.rms_logprob_difference,
        mean_probability=found.logits.mean_probability,
        identical_outputs=found.identical,
        chrf=found.chrf,
        worst_matrices=_worst(errors),
        matrix_errors=_by_kind(errors),
    )


def _encoder(
    subject: Subject, reference: GraphFolder, other: GraphFolder, *, by_matrix: bool
) -> Fidelity | None:
    found = compare_encoders(subject, reference, other)
    if found is None:
        return None
    errors = encoder_errors(reference, other, found.inputs) if by_matrix else {}
    vectors, decisions, logits = found.vectors, found.decisions, found.logits
    agreement, difference = None, None
    if decisions is not None:
        agreement = decisions.agreement
        if (
            subject.score_function != ScoreFunction.IDENTITY
        ):  # otherwise these are not probabilities
            difference = decisions.max_difference
    return Fidelity(
        num_texts=found.num_texts,
        num_tokens=0 if logits is None else logits.num_tokens,
        top1_agreement=agreement if logits is None else logits.top1_agreement,
        kl_divergence=None if logits is None else logits.kl_divergence,
        rms_logprob_difference=None if logits is None else logits.rms_logprob_difference,
        mean_probability=None if logits is None else logits.mean_probability,
        identical_outputs=found.identical,
        min_cosine=None if vectors is None else vectors.min_cosine,
        mean_cosine=None if vectors is None else vectors.mean_cosine,
        retrieval_agreement=None if vectors is None else vectors.retrieval_agreement,
        other_vectors={
            kind.value: VectorFidelity(**asdict(figures))
            for kind, figures in found.other_vectors.items()
        }
        or msgspec.UNSET,
        max_probability_difference=difference,
        worst_matrices=_worst(errors),
        matrix_errors=_by_kind(errors),
    )


def _worst(errors: Mapping[str, float]) -> tuple[MatrixError, ...]:
    # A NaN is the worst error.
    names = sorted(errors, key=lambda name: np.nan_to_num(errors[name], nan=np.inf), reverse=True)
    return tuple(MatrixError(name=name, relative_error=errors[name]) for name in names[:NUM_WORST])


def _by_kind(errors: Mapping[str, float]) -> dict[str, float]:
    squares: dict[str, list[float]] = defaultdict(list)
    for name, error in errors.items():
        squares[kind_of(name)].append(error**2)
    return {kind: float(np.sqrt(np.mean(found))) for kind, found in squares.items()}
