"""Labelled examples of each task, one JSON object per line: training data and held-out sets.

Positions are characters; bytes are base64. Imports no torch.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from model.bundle import Task
from model.graph_spec import Record


class TranslationExample(Record, frozen=True, kw_only=True):
    source: str
    target: str


class ChatTurn(Record, frozen=True, kw_only=True):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class TextExample(Record, frozen=True, kw_only=True):
    """A text for a decoder, or a conversation with it.

    Attributes:
        prompt: what ``text`` follows.
        image: a PNG file that ``text`` is about.
        messages: a conversation that ends with an answer of the assistant, in place of a text.

    Raises:
        ValueError: there are a prompt and an image; or there is neither a text nor a conversation,
            or both; or the conversation does not end with an answer.
    """

    text: str = ""
    prompt: str = ""
    image: bytes | msgspec.UnsetType = msgspec.UNSET  # unset: JSON omits the field
    messages: tuple[ChatTurn, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.image and self.prompt:
            raise ValueError("an image has no prompt")
        if isinstance(self.messages, msgspec.UnsetType):
            if not self.text and not self.prompt:
                raise ValueError("needs a text or messages")
            return
        if self.text or self.prompt or self.image:
            raise ValueError("has messages and a text, a prompt or an image")
        if len(self.messages) < 2 or self.messages[-1].role != "assistant":
            raise ValueError("messages must end with one of the assistant, after another")

    @property
    def turns(self) -> tuple[ChatTurn, ...]:
        """The messages of a conversation; empty for a text."""
        return () if isinstance(self.messages, msgspec.UnsetType) else self.messages


class MaskedExample(Record, frozen=True, kw_only=True):
    """A text whose tokens are masked; ``following`` is the text after it (next-sentence task)."""

    text: str
    following: str = ""


class ClassificationExample(Record, frozen=True, kw_only=True):
    """A text, a pair of texts, an image, or a text with an image, and its label.

    Attributes:
        image: a PNG file.

    Raises:
        ValueError: there is neither a text nor an image, or there is a pair with an image.
    """

    text: str = ""
    label: str
    pair: str = ""
    image: bytes | msgspec.UnsetType = msgspec.UNSET  # unset: JSON omits the field

    def __post_init__(self) -> None:
        if not self.text and not self.image:
            raise ValueError("needs a text or an image")
        if self.image and self.pair:
            raise ValueError("an image has no pair")


class LabelledSpan(Record, frozen=True, kw_only=True):
    start: int
    end: int
    label: str


class TaggingExample(Record, frozen=True, kw_only=True):
    """A text and its entities.

    Raises:
        ValueError: an entity is empty or not inside the text.
    """

    text: str
    spans: tuple[LabelledSpan, ...] = ()

    def __post_init__(self) -> None:
        for span in self.spans:
            if not 0 <= span.start < span.end <= len(self.text):
                raise ValueError(
                    f"there is no entity from {span.start} to {span.end} in a text of "
                    f"{len(self.text)} characters"
                )


class AnswerExample(Record, frozen=True, kw_only=True):
    """A question whose answer is ``context[start:end]``."""

    question: str
    context: str
    start: int
    end: int


class RankingExample(Record, frozen=True, kw_only=True):
    """A query, its relevant document, and other documents."""

    query: str
    relevant: str
    others: tuple[str, ...]


Example = (
    TranslationExample
    | TextExample
    | MaskedExample
    | ClassificationExample
    | TaggingExample
    | AnswerExample
    | RankingExample
)

EXAMPLES: dict[Task, type[Example]] = {
    Task.TRANSLATE: TranslationExample,
    Task.GENERATE: TextExample,
    Task.FILL_MASK: MaskedExample,
    Task.CLASSIFY: ClassificationExample,
    Task.TAG: TaggingExample,
    Task.ANSWER: AnswerExample,
    Task.RERANK: RankingExample,
    Task.EMBED: RankingExample,
}


def parse_examples(data: bytes, task: Task, origin: str) -> list[Example]:
    """The examples in ``data``, JSON lines.

    Raises:
        ValueError: a line is not an example of ``task``; names ``origin`` and the line.
    """
    decoder = msgspec.json.Decoder(EXAMPLES[task])
    examples: list[Example] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            examples.append(decoder.decode(line))
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"{origin}: line {number}: {error}") from error
    return examples


def write_examples(path: Path, examples: Iterable[Example]) -> None:
    """Writes ``examples`` as JSON lines."""
    path.write_bytes(b"".join(msgspec.json.encode(example) + b"\n" for example in examples))
