"""Renders chat templates as Hugging Face defines them: sandboxed Jinja."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.bounds import MAX_NAME_BYTES, ruled, sized
from server.errors import InvalidArgumentError

MAX_PROMPT_CHARACTERS = 4 << 20
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. ``role`` is one of :data:`ROLES`."""

    role: str = sized(max_bytes=MAX_NAME_BYTES)
    content: str = ruled("512 KiB, all messages together")


class ChatTemplate:
    """Renders a conversation as a prompt for the assistant's next turn.

    Args:
        template: the Jinja source.
        special_tokens: texts of special tokens by name, such as ``bos_token``: the template's
            variables.

    Raises:
        jinja2.TemplateError: the template does not compile.
    """

    def __init__(self, template: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(template)
        except TemplateError:
            raise
        except Exception as error:  # such as RecursionError for deep nesting
            raise TemplateError(f"{type(error).__name__}: {error}") from error
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[Message]) -> str:
        """Renders a prompt. Raises ``InvalidArgumentError`` if the template rejects messages."""
        try:
            pieces, num_characters = [], 0
            for piece in self._template.generate(
                messages=[asdict(message) for message in messages],
                add_generation_prompt=True,
                **self._special_tokens,
            ):
                pieces.append(piece)
                num_characters += len(piece)
                if num_characters > MAX_PROMPT_CHARACTERS:
                    raise TemplateError(f"gives more than {MAX_PROMPT_CHARACTERS} characters")
            return "".join(pieces)
        except TemplateError as error:
            raise InvalidArgumentError("messages", str(error)) from error
        except Exception as error:
            # The template is code of the bundle and may raise anything.
            raise InvalidArgumentError("messages", f"the chat template: {error}") from error


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
