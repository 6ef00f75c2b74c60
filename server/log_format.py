"""Formats the log so that messages with foreign text cannot forge records."""

import logging

from server.printable import printable

_INDENT = "    "


class LogFormatter(logging.Formatter):
    """Escapes unprintable characters in messages, and indents tracebacks.

    Otherwise, folder names and clients' texts could forge a record or control a terminal.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def log_to_stderr() -> None:
    """Logs records of level INFO and above to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _indented(text: str) -> str:
    return "\n".join(_INDENT + printable(line) for line in text.split("\n"))
