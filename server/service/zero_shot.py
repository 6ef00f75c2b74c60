"""Zero-shot classification with a natural language inference model (Yin et al. 2019).

A text is the premise, and each label makes a hypothesis. Scores are those of the zero-shot pipeline
of ``transformers``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from server.bounds import MAX_WINDOWS
from server.errors import InvalidArgumentError
from server.printable import quoted
from server.service.encoder_options import Floats, softmax

PLACEHOLDER = "{}"
DEFAULT_TEMPLATE = "This example is {}."


def hypotheses(labels: Sequence[str], template: str | None) -> list[str]:
    """Makes a hypothesis for each label.

    Raises:
        InvalidArgumentError: a label is empty, or the template does not have exactly one ``{}``.
    """
    if template is None:
        template = DEFAULT_TEMPLATE
    if template.count(PLACEHOLDER) != 1:
        raise InvalidArgumentError("hypothesis_template", f"needs one {PLACEHOLDER} for the label")
    for index, label in enumerate(labels):
        if not label.strip():
            raise InvalidArgumentError(f"candidate_labels[{index}]", "is empty")
    return [template.replace(PLACEHOLDER, label) for label in labels]


def check_num_pairs(num_inputs: int, num_labels: int) -> None:
    """Raises ``InvalidArgumentError`` for more pairs than a request may have windows."""
    if num_inputs * num_labels > MAX_WINDOWS:
        raise InvalidArgumentError(
            "candidate_labels",
            f"make {num_inputs * num_labels} pairs with the inputs, at most {MAX_WINDOWS} are "
            "accepted",
        )


@dataclass(frozen=True, slots=True)
class Entailment:
    """The indices of a model's labels for entailment and for its opposite."""

    entailed: int
    contradicted: int

    @classmethod
    def of(cls, model: str, labels: Sequence[str]) -> "Entailment":
        """Finds the indices in the ``labels`` of ``model``.

        Raises:
            InvalidArgumentError: there is no entailment label; names ``candidate_labels``.
        """
        lower = [label.lower() for label in labels]
        entailed = next((i for i, label in enumerate(lower) if label.startswith("entail")), None)
        if entailed is None or len(lower) < 2:
            known = ", ".join(map(quoted, labels[:10])) or "none"
            raise InvalidArgumentError(
                "candidate_labels",
                f"need a model of natural language inference, with a label 'entailment'; "
                f"{model!r} has {known}",
            )
        opposite = len(lower) - 1 if entailed == 0 else 0
        named = (i for i, label in enumerate(lower) if label.startswith("contradict"))
        return cls(entailed, next(named, opposite))

    def scores(self, logits: Floats, *, multi_label: bool) -> Floats:
        """Scores ``[candidates]``, from logits ``[candidates, labels]`` of a text's hypotheses.

        With ``multi_label``, or for a single candidate, each is scored as entailed against
        contradicted. Otherwise exactly one candidate is assumed to be entailed.
        """
        if multi_label or len(logits) == 1:
            return softmax(logits[:, [self.contradicted, self.entailed]])[:, 1]
        return softmax(logits[:, self.entailed])
