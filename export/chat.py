"""Chat templates of checkpoints: those that a server could not use are refused."""

from jinja2 import Template, TemplateError

from export.errors import UnsupportedError
from export.readers.hugging_face import HuggingFaceFolder
from model.chat_template import NAMED_TOKENS, compile_template, render_template, text_content


def chat_template_of(folder: HuggingFaceFolder) -> str | None:
    """The chat template, which sets the other special tokens that it reads, as ``pad_token``."""
    source = folder.chat_template
    if source is None:
        return None
    settings = [
        f"{{% set {name} = {token!r} %}}\n"  # trim_blocks removes the line break
        for name, token in folder.special_tokens.items()
        if token
        and name.isidentifier()
        and name.endswith("_token")
        and name not in NAMED_TOKENS
        and name in source
    ]
    return "".join(settings) + source


def compile_chat_template(source: str) -> Template:
    """The compiled template. Raises ``UnsupportedError`` if a server would refuse it."""
    try:
        return compile_template(source)
    except TemplateError as error:
        raise UnsupportedError(
            f"the chat template does not compile: {error}. Correct it, or remove it"
        ) from error


def render_message(
    template: Template, text: str, special_tokens: dict[str, str], *, has_images: bool = False
) -> str:
    """The prompt of one message of a user. Raises ``UnsupportedError`` if there is none.

    ``has_images``: whether the model reads images in messages.
    """
    messages = [{"role": "user", "content": text_content(text, has_images=has_images)}]
    try:
        return render_template(template, messages, special_tokens)
    except TemplateError as error:
        raise UnsupportedError(
            f"the chat template does not render a user's message: {error}. Correct it, or remove it"
        ) from error
