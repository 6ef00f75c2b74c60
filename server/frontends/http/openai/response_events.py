"""The events of ``/v1/responses``: their names, order and numbers."""

from typing import Any

from server.frontends.http.event_stream import event
from server.frontends.http.failures import Failure
from server.frontends.http.openai.errors import error_object
from server.frontends.http.openai.response_items import reasoning_part, text_part


class ResponseEvents:
    """Encodes the events of one response.

    It has reasoning or not, then at most one message, then tool calls. Reasoning and message have
    one part each.
    """

    def __init__(self) -> None:
        self._number = 0
        self._num_items = 0
        self._place: dict[str, Any] = {}  # of the part of the latest item
        self.has_message = False
        """Whether the message has begun."""
        self.is_reasoning = False
        """Whether reasoning has begun, and has not ended."""

    @property
    def has_begun(self) -> bool:
        """Whether any event was made."""
        return self._number > 0

    def begin(self, response: dict[str, Any]) -> bytes:
        """The events before the first item."""
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def begin_reasoning(self, item: dict[str, Any]) -> bytes:
        """The events before the first reasoning."""
        self.is_reasoning = True
        return self._begin_item(item, reasoning_part(""))

    def reasoning_delta(self, text: str) -> bytes:
        """The event of the next part of the reasoning."""
        return self._event("response.reasoning_text.delta", delta=text, **self._place)

    def end_reasoning(self, item: dict[str, Any]) -> bytes:
        """The events after the last reasoning."""
        self.is_reasoning = False
        text = item["content"][0]["text"]
        return self._event("response.reasoning_text.done", text=text, **self._place) + (
            self._end_item(item)
        )

    def begin_message(self, message: dict[str, Any]) -> bytes:
        """The events before the first text."""
        self.has_message = True
        return self._begin_item(message, text_part("", []))

    def delta(self, text: str, logprobs: list[dict[str, Any]]) -> bytes:
        """The event of the next part of the text."""
        return self._event(
            "response.output_text.delta", delta=text, logprobs=logprobs, **self._place
        )

    def end(self, response: dict[str, Any]) -> bytes:
        """The events after the last text. ``response`` is the completed object."""
        items = response["output"]
        events = [self._end_message(items[self._num_items - 1])] if self.has_message else []
        events += [self._call(item) for item in items[self._num_items :]]
        events.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(events)

    def _end_message(self, message: dict[str, Any]) -> bytes:
        (part,) = message["content"]
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        return self._event("response.output_text.done", **done, **self._place) + (
            self._end_item(message)
        )

    def _begin_item(self, item: dict[str, Any], part: dict[str, Any]) -> bytes:
        index, self._num_items = self._num_items, self._num_items + 1
        self._place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        return self._event(
            "response.output_item.added", output_index=index, item=item
        ) + self._event("response.content_part.added", part=part, **self._place)

    def _end_item(self, item: dict[str, Any]) -> bytes:
        (part,) = item["content"]
        index = self._place["output_index"]
        return self._event("response.content_part.done", part=part, **self._place) + self._event(
            "response.output_item.done", output_index=index, item=item
        )

    def _call(self, item: dict[str, Any]) -> bytes:
        """The events of a whole tool call."""
        index, self._num_items = self._num_items, self._num_items + 1
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "status": "in_progress", "arguments": ""}
        arguments = item["arguments"]
        kind = "response.function_call_arguments"
        return b"".join(
            (
                self._event("response.output_item.added", output_index=index, item=begun),
                self._event(f"{kind}.delta", delta=arguments, **place),
                self._event(f"{kind}.done", name=item["name"], arguments=arguments, **place),
                self._event("response.output_item.done", output_index=index, item=item),
            )
        )

    def error(self, failure: Failure) -> bytes:
        """The event of an error, which ends the stream."""
        return self._event("error", error=error_object(failure))

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event(data, kind)
