"""Token counts in the events of a stream."""

from typing import Any

from server.frontends.http.openai.options import StreamOptions
from server.frontends.http.openai.usage import completion_usage
from server.service.generation_request import TextChunk
from server.service.usage import Usage


class StreamUsage:
    """The token counts that a stream reports, as ``stream_options`` request.

    With ``include_usage``, an event at the end has the usage, and the others have null. With
    ``continuous_usage_stats``, every event has the usage so far; reused tokens count at the end.
    """

    def __init__(self, options: StreamOptions | None) -> None:
        self.is_wanted = options is not None and bool(options.include_usage)
        self._is_continuous = (
            self.is_wanted and options is not None and bool(options.continuous_usage_stats)
        )
        self._so_far: dict[tuple[int, int], Usage] = {}

    def push(self, chunk: TextChunk) -> dict[str, Any]:
        """The usage fields of the event for ``chunk``."""
        if not self.is_wanted:
            return {}
        if chunk.finish is not None:
            usage = chunk.finish.usage
        else:
            usage = Usage(
                chunk.num_input_tokens,
                chunk.num_output_tokens,
                reasoning_tokens=chunk.num_reasoning_tokens,
            )
        self._so_far[chunk.index, chunk.hypothesis] = usage
        return {"usage": self.total() if self._is_continuous else None}

    def total(self) -> dict[str, Any]:
        """The usage of all outputs so far."""
        return completion_usage(Usage.total(self._so_far.values()))
