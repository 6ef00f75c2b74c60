"""Separates what a model thinks before its answer: ``<think>reasoning</think>answer``.

Qwen3, SmolLM3, DeepSeek-R1 and others write so. The templates of some end a prompt with
``<think>``, so that the text begins with the reasoning.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from server.service.generation_request import TextChunk
from server.text.detokenizer import StreamingDetokenizer
from server.text.tags import start_of_tag

OPEN, CLOSE = "<think>", "</think>"


def opens_reasoning(prompt: str) -> bool:
    """Whether the text after ``prompt`` begins with reasoning."""
    return prompt.rstrip().endswith(OPEN)


def leaves_reasoning_open(text: str) -> bool:
    """Whether ``text``, the beginning of an answer, ends within reasoning."""
    return text.lstrip().startswith(OPEN) and CLOSE not in text


class Separated(NamedTuple):
    """A part of a text: reasoning, then the answer."""

    reasoning: str
    text: str


class _State(Enum):
    BEFORE = auto()  # the text so far is white space, or the beginning of a tag
    REASONING = auto()
    BETWEEN = auto()  # white space after the reasoning
    ANSWER = auto()


class ReasoningParser:
    """Separates reasoning from the answer while the text is generated, without white space around.

    Args:
        is_open: whether the text begins with the reasoning. Otherwise it may begin with a tag.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._state = _State.REASONING if is_open else _State.BEFORE
        self._held = ""
        self._has_reasoning = False
        self.has_begun = is_open
        """Whether the text so far has the tag before reasoning, or began after it."""

    @property
    def has_ended(self) -> bool:
        """Whether all further text is that of the answer."""
        return self._state in (_State.BETWEEN, _State.ANSWER)

    def push(self, text: str) -> Separated:
        """Adds generated text."""
        self._held += text
        if self._state is _State.BEFORE:
            begin = self._held.lstrip()
            if begin.startswith(OPEN):
                self._state, self._held = _State.REASONING, begin.removeprefix(OPEN)
                self.has_begun = True
            elif OPEN.startswith(begin):
                return Separated("", "")
            else:
                self._state = _State.ANSWER
        reasoning = self._take_reasoning() if self._state is _State.REASONING else ""
        if self._state is _State.BETWEEN:
            self._held = self._held.lstrip()
            if self._held:
                self._state = _State.ANSWER
        if self._state is not _State.ANSWER:
            return Separated(reasoning, "")
        answer, self._held = self._held, ""
        return Separated(reasoning, answer)

    def finish(self) -> Separated:
        """Ends the text. A tag that was not completed is text."""
        rest = self._held
        return Separated(rest, "") if self._state is _State.REASONING else Separated("", rest)

    def _take_reasoning(self) -> str:
        """Takes reasoning, up to what may be its end, from what is held."""
        if not self._has_reasoning:
            self._held = self._held.lstrip()
        reasoning, close, after = self._held.partition(CLOSE)
        if close:
            self._state, self._held = _State.BETWEEN, after
            return reasoning.rstrip()
        reasoning = self._held[: start_of_tag(self._held, CLOSE)].rstrip()
        self._held = self._held[len(reasoning) :]
        self._has_reasoning = self._has_reasoning or bool(reasoning)
        return reasoning


class ReasoningCounter:
    """Counts the tokens of one output's reasoning, those of its tags included.

    A token with the end of the reasoning and the beginning of the answer counts.

    Args:
        text: an unused detokenizer.
        is_open: as for :class:`ReasoningParser`.
    """

    def __init__(self, text: StreamingDetokenizer, *, is_open: bool) -> None:
        self._text = text
        self._parser = ReasoningParser(is_open=is_open)
        self._num_pushed = 0
        self.num_tokens = 0

    def skip(self, ids: Sequence[int]) -> None:
        """Adds tokens that were not generated: they do not count."""
        self._parser.push(self._text.push_all(ids))

    def push(self, ids: Sequence[int]) -> None:
        """Adds generated tokens. After the reasoning, this costs nothing."""
        for id_ in ids:
            if self._parser.has_ended:
                return
            self._num_pushed += 1
            self._parser.push(self._text.push(id_))
            if self._parser.has_begun:
                self.num_tokens = self._num_pushed


async def separate_reasoning(
    chunks: AsyncGenerator[TextChunk, None], *, is_open: bool
) -> AsyncGenerator[TextChunk, None]:
    """Moves reasoning from the texts of one input's outputs to ``reasoning``."""
    parsers: dict[int, ReasoningParser] = {}
    async with aclosing(chunks):
        async for chunk in chunks:
            number = chunk.hypothesis
            if number not in parsers:
                parsers[number] = ReasoningParser(is_open=is_open)
            reasoning, text = parsers[number].push(chunk.text)
            if chunk.finish is not None:
                rest = parsers[number].finish()
                reasoning, text = reasoning + rest.reasoning, text + rest.text
            is_same = text == chunk.text and not reasoning
            yield chunk if is_same else replace(chunk, text=text, reasoning=reasoning)
