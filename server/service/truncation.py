"""Reports how inputs of encoder calls were truncated or split, and their usage."""

from dataclasses import dataclass

from server.service.usage import Usage
from server.text.windows import TokenizedText


@dataclass(frozen=True, slots=True)
class Truncation:
    """How an input was truncated or split.

    ``truncated_tokens`` is the number of the text's dropped tokens. ``windows`` is the number of
    windows; 1 if the text fits into one.
    """

    truncated_tokens: int
    windows: int


def usage_of(text: TokenizedText) -> Usage:
    """Usage of one input."""
    return Usage(input_tokens=text.num_tokens)


def truncation_of(text: TokenizedText) -> Truncation:
    """How one input was truncated or split."""
    return Truncation(text.num_truncated_tokens, len(text.windows))
