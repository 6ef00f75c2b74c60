"""Conversations as a chat template writes them, cut into answers and what stands between them.

Each part is tokenized alone, as in serving: the prompt ends where the answer begins. Imports no
torch.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from jinja2 import Template, TemplateError

from model.chat_template import render_template
from model.examples import ChatTurn

ASSISTANT = "assistant"


class Part(NamedTuple):
    """Part of a conversation. ``is_answer``: the model is to write it, up to its end token."""

    ids: list[int]
    is_answer: bool


def conversation_parts(
    turns: Sequence[ChatTurn],
    template: Template | None,
    special_tokens: dict[str, str],
    encode: Callable[[str], list[int]],
    eos: Collection[int],
) -> list[Part]:
    """The tokens of ``turns``, of which the last is an answer.

    An answer is learned only if later turns leave it as it was: templates may shorten earlier ones.

    Args:
        special_tokens: by name, such as ``bos_token``; variables of the template.
        encode: tokenizes a text without adding special tokens.
        eos: the tokens that end an answer. An answer without one gets the first.

    Raises:
        ValueError: there is no template, it rejects the turns, or it changes the prompt of an
            answer.
    """
    if template is None:
        raise ValueError("it has messages, but the model has no chat template")
    texts: list[tuple[str, bool]] = []
    for index, turn in enumerate(turns):
        if turn.role != ASSISTANT:
            continue
        prompt = _rendered(turns[:index], template, special_tokens, is_prompt=True)
        whole = _rendered(turns[: index + 1], template, special_tokens, is_prompt=False)
        if not whole.startswith(prompt):
            raise ValueError("the chat template writes another prompt once the answer is known")
        before = "".join(text for text, _ in texts)
        if not prompt.startswith(before):
            before, texts = "", []
        texts += [(prompt[len(before) :], False), (whole[len(prompt) :], True)]
    parts: list[Part] = []
    for text, is_answer in texts:
        ids = encode(text)
        if not is_answer:
            parts.append(Part(ids, is_answer=False))
            continue
        end = next((index + 1 for index, id_ in enumerate(ids) if id_ in eos), len(ids))
        parts += [Part(ids[:end], is_answer=True), Part(ids[end:], is_answer=False)]
    answer = parts[-2].ids
    if answer[-1:] and answer[-1] not in eos:
        answer.extend(list(eos)[:1])
    return parts


def _rendered(
    turns: Sequence[ChatTurn],
    template: Template,
    special_tokens: dict[str, str],
    *,
    is_prompt: bool,
) -> str:
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    try:
        options = {"add_generation_prompt": is_prompt}
        return render_template(template, messages, special_tokens, options)
    except TemplateError as error:
        raise ValueError(f"the chat template does not render it: {error}") from error
