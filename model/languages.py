"""The language tokens of multilingual encoder-decoders. Imports no torch."""

from collections.abc import Mapping, Sequence

from model.bundle import SpecialTokens


def first_target_tokens(
    special: SpecialTokens, languages: Mapping[str, int], language_token: int | None
) -> tuple[int, ...]:
    """The tokens that every target begins with; none if there is no ``decoder_start``.

    Args:
        languages: the tokens of all languages.
        language_token: that of the target's; None for the model's default.
    """
    start = special.decoder_start
    if start is None:
        return ()
    token = special.forced_first if language_token is None else language_token
    if token is None:
        return (start,)
    return (token,) if start in languages.values() else (start, token)


def needs_language(special: SpecialTokens, languages: Mapping[str, int]) -> bool:
    """Whether a target must name its language: there are several, and no default."""
    is_named = special.forced_first is not None or special.decoder_start in languages.values()
    return bool(languages) and not is_named


def with_language_token(
    source: Sequence[int], languages: Mapping[str, int], token: int
) -> tuple[int, ...]:
    """``source`` with ``token`` in place of a language token at its start or end."""
    known, last = set(languages.values()), len(source) - 1
    return tuple(
        token if index in (0, last) and id_ in known else id_ for index, id_ in enumerate(source)
    )
