"""Renders chat templates as Hugging Face defines them: sandboxed Jinja."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from jinja2 import TemplateError

from model.chat_template import compile_template, render_template
from server.bounds import MAX_NAME_BYTES, ruled, sized
from server.errors import InvalidArgumentError

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
        self._template = compile_template(template)
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[Message]) -> str:
        """Renders a prompt. Raises ``InvalidArgumentError`` if the template rejects messages."""
        turns = [asdict(message) for message in messages]
        try:
            return render_template(self._template, turns, self._special_tokens)
        except TemplateError as error:
            raise InvalidArgumentError("messages", str(error)) from error
