"""Formats log-probabilities for chat and for text completions."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from server.errors import InvalidArgumentError
from server.service.generation_options import MAX_TOP_LOGPROBS
from server.service.generation_request import ScoredToken

Spell = Callable[[Sequence[int]], list[bytes]]
"""Maps token ids to the bytes that they add to a text."""


def chat_logprobs(tokens: Sequence[ScoredToken], spell: Spell) -> dict[str, Any]:
    """``{"content": [{"token", "logprob", "bytes", "top_logprobs"}]}``."""
    return {"content": token_list(tokens, spell)}


def token_list(tokens: Sequence[ScoredToken], spell: Spell) -> list[dict[str, Any]]:
    """Each token with the most likely tokens at its position."""
    return [
        {**one, "top_logprobs": _entries(token.top, spell)}
        for token, one in zip(tokens, _entries(tokens, spell), strict=True)
    ]


def _entries(tokens: Sequence[ScoredToken], spell: Spell) -> list[dict[str, Any]]:
    if not tokens:
        return []
    return [
        {
            "token": spelled.decode(errors="replace"),
            "logprob": token.logprob,
            "bytes": list(spelled),
        }
        for token, spelled in zip(tokens, spell([token.token_id for token in tokens]), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a model spells tokens. ``special_ids``: of tokens that are not in the text."""

    spell: Spell
    special_ids: Container[int]

    def length(self, token_id: int, spelled: str) -> int:
        """Characters that a token adds to the text."""
        return 0 if token_id in self.special_ids else len(spelled)


def completion_logprobs(
    tokens: Sequence[ScoredToken], spelling: Spelling, start: int, first: int | None = None
) -> dict[str, Any]:
    """``{"tokens", "token_logprobs", "top_logprobs", "text_offset"}``.

    Args:
        tokens: the tokens.
        spelling: spells tokens.
        start: the offset of the first token in the text, in characters.
        first: the first token of an echoed prompt, which has no log-probability; else ``None``.
    """
    ids = [token.token_id for token in tokens]
    if first is not None:
        ids.insert(0, first)
    texts = [spelled.decode(errors="replace") for spelled in spelling.spell(ids)]
    offsets = []
    for id_, text in zip(ids, texts, strict=True):
        offsets.append(start)
        start += spelling.length(id_, text)
    missing = [] if first is None else [None]
    return {
        "tokens": texts,
        "token_logprobs": [*missing, *(token.logprob for token in tokens)],
        "top_logprobs": [*missing, *(_top(token, spelling.spell) for token in tokens)],
        "text_offset": offsets,
    }


def num_prompt_logprobs(body: Any) -> int | None:
    """How many of the most likely tokens to return with each of the prompt; ``None``: no tokens."""
    given: int | None = body.prompt_logprobs
    if given is None or (body.stream and given == 0):  # as vLLM, whose streams ignore 0
        return None
    if body.stream:
        raise InvalidArgumentError("prompt_logprobs", "are not streamed")
    if given < 0:
        raise InvalidArgumentError("prompt_logprobs", f"{given} is not in 0 … {MAX_TOP_LOGPROBS}")
    return given


def prompt_logprobs(
    tokens: Sequence[ScoredToken], num_top: int, spell: Spell
) -> list[dict[str, Any] | None]:
    """vLLM's ``[null, {ID: {"logprob", "rank", "decoded_token"}}, ...]`` of a prompt.

    Each token is first, then the ``num_top`` most likely ones at its position. The first token has
    no log-probability, and the rank of a token that is not among them is null.
    """
    found: list[dict[str, Any] | None] = [None]
    for token in tokens:
        top = token.top[:num_top]
        ranks = {other.token_id: rank for rank, other in enumerate(top, start=1)}
        entries = list({each.token_id: each for each in (token, *top)}.values())
        spelled = spell([entry.token_id for entry in entries])
        found.append(
            {
                str(entry.token_id): {
                    "logprob": entry.logprob,
                    "rank": ranks.get(entry.token_id),
                    "decoded_token": text.decode(errors="replace"),
                }
                for entry, text in zip(entries, spelled, strict=True)
            }
        )
    return found


def with_top(tokens: Sequence[ScoredToken], num_top: int) -> tuple[ScoredToken, ...]:
    """``tokens`` with at most ``num_top`` of the most likely ones at each position."""
    return tuple(replace(token, top=token.top[:num_top]) for token in tokens)


def _top(token: ScoredToken, spell: Spell) -> dict[str, float]:
    entries = reversed(_entries((*token.top, token), spell))  # the likeliest of equal texts wins
    return {entry["token"]: entry["logprob"] for entry in entries}
