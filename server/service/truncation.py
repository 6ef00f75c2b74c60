"""How the inputs of encoder calls were shortened or split, and their usage."""

from dataclasses import dataclass

from server.service.usage import Usage
from server.text.windows import TokenizedText


@dataclass(frozen=True, slots=True)
class Truncation:
    """How an input was shortened or split.

    ``truncated_tokens``: tokens of the text that were dropped. ``windows``: windows that the text
    was split into; 1 if it fits into one.
    """

    truncated_tokens: int
    windows: int


def usage_of(text: TokenizedText) -> Usage:
    """Usage of one input."""
    return Usage(input_tokens=text.num_tokens)


def truncation_of(text: TokenizedText) -> Truncation:
    """How one input was shortened or split."""
    return Truncation(text.num_truncated_tokens, len(text.windows))
