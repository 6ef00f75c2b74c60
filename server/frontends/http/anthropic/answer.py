"""Anthropic's messages and the events of their streams."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from server.frontends.http.event_stream import event
from server.service.generation_request import (
    Finish,
    FinishReason,
    Hypothesis,
    TextChunk,
    ToolCall,
)
from server.service.usage import Usage

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.DEADLINE: "max_tokens",
    FinishReason.CANCELLED: "end_turn",
}


def message_usage(usage: Usage) -> dict[str, Any]:
    """The token counts. As in Anthropic's, ``input_tokens`` excludes those from the cache."""
    return {
        "input_tokens": usage.input_tokens - usage.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.reused_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


class Answer:
    """The message of one call, whole or as events.

    Args:
        request_id: the call's. Messages have it as ``id``, and what the model thinks as
            ``signature``: nothing is signed, but clients send only signed thinking back.
        model: the model's name.
        shows_thinking: whether to send what the model thinks; its blocks are empty otherwise.
    """

    def __init__(self, request_id: str, model: str, *, shows_thinking: bool) -> None:
        self._request_id = request_id
        self._model = model
        self._shows_thinking = shows_thinking

    def whole(self, hypothesis: Hypothesis) -> dict[str, Any]:
        """The message."""
        blocks: list[dict[str, Any]] = []
        if hypothesis.reasoning:
            thinking = hypothesis.reasoning if self._shows_thinking else ""
            blocks.append(_thinking_block(thinking, self._request_id))
        if hypothesis.text or not hypothesis.tool_calls:
            blocks.append(_text_block(hypothesis.text))
        for call in hypothesis.tool_calls:
            blocks.append(_use_block(call, msgspec.json.decode(call.arguments)))
        has_calls = bool(hypothesis.tool_calls)
        usage = hypothesis.finish.usage
        return {**self._message(usage, blocks), **_stop(hypothesis.finish, has_calls=has_calls)}

    async def events(self, chunks: AsyncGenerator[TextChunk, None]) -> AsyncGenerator[bytes, None]:
        """Yields the events of a stream, in the order that Anthropic's clients expect."""
        blocks = _Blocks(self._request_id, shows_thinking=self._shows_thinking)
        has_begun = has_text = has_calls = False
        async with aclosing(chunks):
            async for chunk in chunks:
                parts = []
                if not has_begun:
                    has_begun = True
                    message = self._message(Usage(chunk.num_input_tokens), [])
                    parts += [_event("message_start", message=message), _event("ping")]
                if chunk.reasoning:
                    parts.append(blocks.think(chunk.reasoning))
                has_calls = has_calls or bool(chunk.tool_calls)
                is_empty = chunk.finish is not None and not has_text and not has_calls
                if chunk.text or is_empty:
                    has_text = True
                    parts.append(blocks.write(chunk.text))
                parts += map(blocks.use, chunk.tool_calls)
                if chunk.finish is not None:
                    parts.append(blocks.end())
                    stop = _stop(chunk.finish, has_calls=has_calls)
                    usage = message_usage(chunk.finish.usage)
                    parts.append(_event("message_delta", delta=stop, usage=usage))
                    parts.append(_event("message_stop"))
                yield b"".join(parts)

    def _message(self, usage: Usage, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": message_usage(usage),
        }


class _Blocks:
    """Encodes the events of blocks, which follow each other."""

    def __init__(self, signature: str, *, shows_thinking: bool) -> None:
        self._signature = signature
        self._shows_thinking = shows_thinking
        self._num_blocks = 0
        self._open = ""  # the type of the block that has not ended

    def think(self, text: str) -> bytes:
        """The events of the next part of what the model thinks."""
        start = self._switch("thinking", _thinking_block("", ""))
        if not self._shows_thinking:
            return start
        return start + self._delta({"type": "thinking_delta", "thinking": text})

    def write(self, text: str) -> bytes:
        """The events of the next part of the text."""
        start = self._switch("text", _text_block(""))
        return start + (self._delta({"type": "text_delta", "text": text}) if text else b"")

    def use(self, call: ToolCall) -> bytes:
        """The events of a whole use of a tool."""
        start = self.end() + self._switch("tool_use", _use_block(call, {}))
        delta = self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        return start + delta + self.end()

    def end(self) -> bytes:
        """The events after the last part of the open block, if there is one."""
        if not self._open:
            return b""
        is_thinking, self._open = self._open == "thinking", ""
        stop = _event("content_block_stop", index=self._num_blocks - 1)
        if not is_thinking:
            return stop
        return self._delta({"type": "signature_delta", "signature": self._signature}) + stop

    def _switch(self, kind: str, block: dict[str, Any]) -> bytes:
        """The events before a part of type ``kind``: none if such a block is open."""
        if self._open == kind:
            return b""
        ended = self.end()
        self._open = kind
        self._num_blocks += 1
        index = self._num_blocks - 1
        return ended + _event("content_block_start", index=index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._num_blocks - 1, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _stop(finish: Finish, *, has_calls: bool) -> dict[str, Any]:
    reason = _STOP_REASONS[finish.reason]
    reason = "tool_use" if has_calls and finish.reason is FinishReason.STOP else reason
    return {"stop_reason": reason, "stop_sequence": finish.stop_string}


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _thinking_block(thinking: str, signature: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": thinking, "signature": signature}


def _use_block(call: ToolCall, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given}
