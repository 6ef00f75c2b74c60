"""The requests of ``triune generate``: what each TEXT or image becomes."""

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from client import types


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The input of one request: texts, one conversation, or the contents of image files."""

    inputs: Sequence[str] = ()
    messages: Sequence[types.Message] = ()
    images: Sequence[bytes] = ()


def prompts_of(
    texts: Sequence[str], images: Sequence[bytes], system: str | None, *, is_chat: bool
) -> list[Prompt]:
    """The requests: one for each text of a chat, with all images, or one for all of them.

    Raises:
        typer.BadParameter: outside of a chat, there is a system message, or texts beside images.
    """
    if is_chat:
        return [Prompt(messages=_messages(text, images, system)) for text in texts or [""]]
    if system is not None:
        raise typer.BadParameter("--system needs a model with a chat template, without --raw")
    if images and texts:
        raise typer.BadParameter(
            "TEXT with --image needs a model with a chat template, without --raw"
        )
    return [Prompt(inputs=texts, images=images)]


def _messages(text: str, images: Sequence[bytes], system: str | None) -> list[types.Message]:
    first = [] if system is None else [types.Message("system", system)]
    return [*first, types.Message("user", [*images, text] if images else text)]
