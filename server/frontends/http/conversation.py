"""A conversation in the service's messages, which knows where the body has each of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from server.errors import InvalidArgumentError
from server.service.generation_request import Message, ToolCall


class Conversation:
    """Collects messages. A body may have one in several places, or several in one place."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._paths: dict[str, str] = {}  # in the body, by the path in the service's request

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages so far."""
        return tuple(self._messages)

    def ends_with(self, role: str) -> bool:
        """Whether the last message is of ``role``."""
        return bool(self._messages) and self._messages[-1].role == role

    def add(self, message: Message, path: str, fields: Mapping[str, str] | None = None) -> None:
        """Adds a message.

        Args:
            message: the message.
            path: where the body has it.
            fields: where the body has those of its fields that have another name there.
        """
        self._messages.append(message)
        self._place(f"messages[{len(self._messages) - 1}]", path, fields)

    def add_call(self, call: ToolCall, path: str, fields: Mapping[str, str] | None = None) -> None:
        """Adds a tool call to the last message; the others as those of :meth:`add`."""
        last = self._messages[-1]
        self._messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))
        message = f"messages[{len(self._messages) - 1}]"
        self._place(f"{message}.tool_calls[{len(last.tool_calls)}]", path, fields)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Renames the fields of messages in an error of the block."""
        try:
            yield
        except InvalidArgumentError as error:
            path = self._path_of(error.field)
            if path == error.field:
                raise
            raise type(error)(path, error.description) from None

    def _place(self, own: str, path: str, fields: Mapping[str, str] | None) -> None:
        self._paths[own] = path
        for field, place in (fields or {}).items():
            self._paths[f"{own}.{field}"] = place

    def _path_of(self, field: str) -> str:
        """The path of ``field`` in the body: that of it, or of the innermost part around it."""
        end = len(field)
        while end > 0:
            if field[:end] in self._paths:
                return self._paths[field[:end]] + field[end:]
            end = max(field.rfind(".", 0, end), field.rfind("[", 0, end))
        return field
