"""The events of ``/v1/responses``: their names, order and numbers."""

from typing import Any

from server.frontends.http.event_stream import event
from server.frontends.http.failures import Failure
from server.frontends.http.openai.errors import error_object

_PLACE = {"output_index": 0, "content_index": 0}


class ResponseEvents:
    """Encodes the events of one response, which has one message of one part."""

    def __init__(self, item_id: str) -> None:
        self._item = {"item_id": item_id}
        self._number = 0

    @property
    def has_begun(self) -> bool:
        """Whether any event was made."""
        return self._number > 0

    def begin(self, response: dict[str, Any], message: dict[str, Any]) -> bytes:
        """The events before the first text."""
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return b"".join(
            (
                self._event("response.created", response=response),
                self._event("response.in_progress", response=response),
                self._event("response.output_item.added", output_index=0, item=message),
                self._event("response.content_part.added", part=part, **self._item, **_PLACE),
            )
        )

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        """The event of the next part of the text."""
        place = {**self._item, **_PLACE}
        return self._event("response.output_text.delta", delta=text, logprobs=logprobs, **place)

    def end(self, text: str, part: dict[str, Any], response: dict[str, Any]) -> bytes:
        """The events after the last text. ``response`` is the completed object."""
        place = {**self._item, **_PLACE}
        (message,) = response["output"]
        return b"".join(
            (
                self._event(
                    "response.output_text.done", text=text, logprobs=part["logprobs"], **place
                ),
                self._event("response.content_part.done", part=part, **place),
                self._event("response.output_item.done", output_index=0, item=message),
                self._event(f"response.{response['status']}", response=response),
            )
        )

    def error(self, failure: Failure) -> bytes:
        """The event of an error, which ends the stream."""
        return self._event("error", error=error_object(failure))

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(data, kind)
