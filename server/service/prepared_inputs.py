"""Inputs of an encoder call that are ready to run."""

from collections.abc import Sequence
from dataclasses import dataclass

from server.engine.requests.job import EncodingJob
from server.service.truncation import Truncation, truncation_of, usage_of
from server.service.usage import Usage
from server.text.windows import TokenizedText


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """The jobs and usage of each input, and how it was truncated or split."""

    jobs: list[list[EncodingJob]]
    usages: list[Usage]
    truncations: list[Truncation]

    @classmethod
    def of(cls, texts: Sequence[TokenizedText], jobs: list[list[EncodingJob]]) -> "PreparedInputs":
        """Combines tokenized ``texts`` with the ``jobs`` of each."""
        return cls(jobs, [usage_of(text) for text in texts], [truncation_of(x) for x in texts])
