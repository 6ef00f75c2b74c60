"""Languages of a multilingual encoder-decoder, which sources and targets name by a token."""

from model.bundle import Manifest
from server.errors import InvalidArgumentError
from server.models.registry import Model


def target_start(model: Model, language: str = "") -> tuple[int, ...]:
    """The tokens that every target begins with.

    Args:
        model: an encoder-decoder.
        language: to translate to; empty for the model's default, if it has one.

    Raises:
        InvalidArgumentError: the model does not know the language, or needs one.
    """
    manifest, special = model.manifest, model.manifest.special_tokens
    start = special.decoder_start
    if start is None:
        raise InvalidArgumentError("model", "its bundle names no decoder_start token")
    known = manifest.languages.values()
    token = special.forced_first
    if language:
        token = _token(manifest, "target_language", language, manifest.target_language)
    elif token is None and known and start not in known:
        raise InvalidArgumentError(
            "target_language", f"{manifest.name!r} needs one of {', '.join(manifest.languages)}"
        )
    if token is None:
        return (start,)
    return (token,) if start in known else (start, token)


def with_source_language(model: Model, language: str, source: tuple[int, ...]) -> tuple[int, ...]:
    """``source`` with the token of ``language`` in place of the tokenizer's, at either end.

    Raises:
        InvalidArgumentError: the model does not know the language.
    """
    if not language:
        return source
    manifest = model.manifest
    token = _token(manifest, "source_language", language, manifest.source_language)
    known, last = set(manifest.languages.values()), len(source) - 1
    if token is None:
        return source
    return tuple(
        token if index in (0, last) and id_ in known else id_ for index, id_ in enumerate(source)
    )


def _token(manifest: Manifest, field: str, language: str, own: str | None) -> int | None:
    """The token of ``language``; None for the one language of a model that has no choice."""
    if language in manifest.languages:
        return manifest.languages[language]
    if language == own:
        return None
    names = ", ".join(manifest.languages) or own or "one language, which its bundle does not name"
    raise InvalidArgumentError(
        field, f"{language!r} is not one that {manifest.name!r} knows: {names}"
    )
