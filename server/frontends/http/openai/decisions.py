"""``/v1/decisions``: questions about a text, answered with probabilities.

A decoder scores each answer as the continuation of the input and the question. Each question is
scored by itself, so no question changes another's answer.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from starlette.responses import Response

from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.openai.messages import ChatMessage, ContentPart, service_messages
from server.frontends.http.openai.usage import response_usage
from server.service.encoder_options import softmax
from server.service.score import ScoreInput, ScoreRequest
from server.service.usage import Usage

MAX_QUESTIONS = 400
MAX_CHOICES = 255
# Maximum characters to score. A prompt counts once per answer: they are tokenized together.
MAX_CHARACTERS = 4 << 20
_TRUE, _FALSE = "yes", "no"


class Choice(msgspec.Struct, kw_only=True):
    """One of the answers to choose from."""

    value: str | bool
    description: str | None = None


class Level(msgspec.Struct, kw_only=True):
    """One of the ordered answers of a score question."""

    label: str
    description: str | None = None


class Predicate(msgspec.Struct, kw_only=True, tag="predicate"):
    """Asks how likely it is that a statement is true."""

    instructions: str | list[ContentPart]
    name: str | None = None


class ChoiceQuestion(msgspec.Struct, kw_only=True, tag="choice"):
    """Asks which of the choices is right."""

    instructions: str | list[ContentPart]
    choices: list[Choice]
    name: str | None = None


class ScoreQuestion(msgspec.Struct, kw_only=True, tag="score"):
    """Asks which level is reached."""

    instructions: str | list[ContentPart]
    levels: list[Level]
    name: str | None = None


Question = Predicate | ChoiceQuestion | ScoreQuestion


class DecisionsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. The fields of the last group have no effect."""

    model: str
    input: str | list[ChatMessage]
    questions: list[Question]

    prompt_cache_key: msgspec.Raw = NOTHING
    prompt_cache_options: msgspec.Raw = NOTHING
    safety_identifier: msgspec.Raw = NOTHING


async def decisions(call: Call[DecisionsBody]) -> Response:
    """Answers each question."""
    body = call.body
    if not 0 < len(body.questions) <= MAX_QUESTIONS:
        raise InvalidArgumentError("questions", f"needs 1 … {MAX_QUESTIONS}")
    text = _input_text(body)
    body.input = ""  # its messages would keep the bytes of the body
    asked = asked_of(body.questions, len(text))
    usage = Usage()
    results = []
    for index, (question, one) in enumerate(zip(body.questions, asked, strict=True)):
        prompt = text + one.suffix
        request = ScoreRequest(
            model=body.model,
            inputs=tuple(ScoreInput(prompt, f" {answer}") for answer in one.answers),
        )
        try:
            result = await call.service.score(request, call.caller)
        except InvalidArgumentError as error:
            field = f"questions[{index}]" if error.field.startswith("inputs") else error.field
            raise InvalidArgumentError(field, error.description) from None
        usage = Usage.total((usage, result.usage))
        scores = np.array([output.score for output in result.outputs], np.float32)
        results.append(_answer(question, softmax(scores).tolist()))
    return json_response({"model": body.model, "answers": results, "usage": response_usage(usage)})


def _input_text(body: DecisionsBody) -> str:
    if isinstance(body.input, str):
        return body.input
    messages = service_messages(body.input, field="input")
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: the text of its prompt after the input, and the answers to score."""

    suffix: str
    answers: Sequence[str]


def asked_of(questions: Sequence[Question], input_length: int) -> list[Asked]:
    """The questions about an input of ``input_length`` characters; no prompt is built.

    Raises:
        InvalidArgumentError: names the question that is invalid; or all prompts and answers
            together have more than :data:`MAX_CHARACTERS`.
    """
    asked = [_asked(question, f"questions[{index}]") for index, question in enumerate(questions)]
    num_characters = sum(
        (input_length + len(one.suffix)) * len(one.answers) + sum(map(len, one.answers))
        for one in asked
    )
    if num_characters > MAX_CHARACTERS:
        raise InvalidArgumentError(
            "questions", f"have {num_characters} characters to score, at most {MAX_CHARACTERS}"
        )
    return asked


def _asked(question: Question, path: str) -> Asked:
    options: list[tuple[str, str | None]]
    match question:
        case Predicate():
            options = [(_TRUE, None), (_FALSE, None)]
            ask = "Is this statement true?"
        case ChoiceQuestion():
            _check_count(question.choices, f"{path}.choices")
            options = [(_spelled(choice.value), choice.description) for choice in question.choices]
            _check_names(options, f"{path}.choices")
            ask = "Which of these is right?"
        case ScoreQuestion():
            _check_count(question.levels, f"{path}.levels")
            options = [(level.label, level.description) for level in question.levels]
            _check_names(options, f"{path}.levels")
            ask = "Which level is reached?"
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in options]
    instructions = _instructions(question.instructions, f"{path}.instructions")
    listed = "\n".join(lines)
    suffix = f"\n\n{instructions}\n{ask}\n{listed}\nAnswer:"
    return Asked(suffix, [name for name, _ in options])


def _check_count(options: Sized, path: str) -> None:
    if not 2 <= len(options) <= MAX_CHOICES:
        raise InvalidArgumentError(path, f"needs 2 … {MAX_CHOICES}")


def _check_names(options: Sequence[tuple[str, str | None]], path: str) -> None:
    names = [name for name, _ in options]
    if not all(names) or len(set(names)) < len(names):
        raise InvalidArgumentError(path, "must differ and not be empty")


def _instructions(given: str | list[ContentPart], path: str) -> str:
    message = ChatMessage(role="user", content=given)
    try:
        ((converted),) = service_messages([message])
    except InvalidArgumentError as error:
        inside = error.field.removeprefix("messages[0].content")
        raise InvalidArgumentError(path + inside, error.description) from None
    if not converted.content.strip():
        raise InvalidArgumentError(path, "is empty")
    return converted.content


def _spelled(value: str | bool) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


def _answer(question: Question, probabilities: Sequence[float]) -> dict[str, Any]:
    best = int(np.argmax(probabilities))
    match question:
        case Predicate():
            return {
                "type": "predicate",
                "name": question.name,
                "probability": probabilities[0],
            }
        case ChoiceQuestion():
            return {
                "type": "choice",
                "name": question.name,
                "choice": question.choices[best].value,
                "confidence": probabilities[best],
                "probabilities": [
                    {"value": choice.value, "probability": probability}
                    for choice, probability in zip(question.choices, probabilities, strict=True)
                ],
            }
        case ScoreQuestion():
            return {
                "type": "score",
                "name": question.name,
                "score": float(np.dot(probabilities, np.arange(len(probabilities)))),
                "confidence": probabilities[best],
                "probabilities": [
                    {"label": level.label, "value": value, "probability": probability}
                    for value, (level, probability) in enumerate(
                        zip(question.levels, probabilities, strict=True)
                    )
                ],
            }
