"""Language tokens of multilingual encoder-decoders."""

from model.bundle import Manifest
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.printable import quoted


def target_start(model: Model, language: str = "") -> tuple[int, ...]:
    """The tokens that every target begins with.

    Args:
        model: an encoder-decoder.
        language: the target language; empty for the model's default, if it has one.

    Raises:
        InvalidArgumentError: the model does not support the language, or requires one.
    """
    manifest, special = model.manifest, model.manifest.special_tokens
    start = special.decoder_start
    if start is None:
        raise InvalidArgumentError("model", "its bundle has no decoder_start token")
    known = manifest.languages.values()
    token = special.forced_first
    if language:
        token = language_token(manifest, "target_language", language, manifest.target_language)
    elif token is None and known and start not in known:
        raise InvalidArgumentError(
            "target_language", f"{manifest.name!r} requires one of {', '.join(manifest.languages)}"
        )
    if token is None:
        return (start,)
    return (token,) if start in known else (start, token)


def with_source_language(model: Model, language: str, source: tuple[int, ...]) -> tuple[int, ...]:
    """Replaces the language token at the start or end of ``source`` by that of ``language``.

    Raises:
        InvalidArgumentError: the model does not support the language.
    """
    if not language:
        return source
    manifest = model.manifest
    token = language_token(manifest, "source_language", language, manifest.source_language)
    known, last = set(manifest.languages.values()), len(source) - 1
    if token is None:
        return source
    return tuple(
        token if index in (0, last) and id_ in known else id_ for index, id_ in enumerate(source)
    )


def language_token(manifest: Manifest, field: str, language: str, own: str | None) -> int | None:
    """The token of ``language``; ``None`` if it is ``own``, the only language of the model."""
    if language in manifest.languages:
        return manifest.languages[language]
    if language == own:
        return None
    names = ", ".join(manifest.languages) or own or "its one language has no name in the bundle"
    raise InvalidArgumentError(
        field, f"{quoted(language)} is not a language of {manifest.name!r}: {names}"
    )
