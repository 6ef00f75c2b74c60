"""Language tokens of multilingual encoder-decoders."""

from model.bundle import Manifest
from model.languages import first_target_tokens, needs_language, with_language_token
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
    if special.decoder_start is None:
        raise InvalidArgumentError("model", "its bundle has no decoder_start token")
    token = None
    if language:
        token = language_token(manifest, "target_language", language, manifest.target_language)
    elif needs_language(special, manifest.languages):
        raise InvalidArgumentError(
            "target_language", f"{manifest.name!r} requires one of {', '.join(manifest.languages)}"
        )
    return first_target_tokens(special, manifest.languages, token)


def with_source_language(model: Model, language: str, source: tuple[int, ...]) -> tuple[int, ...]:
    """Replaces the language token at the start or end of ``source`` by that of ``language``.

    Raises:
        InvalidArgumentError: the model does not support the language.
    """
    if not language:
        return source
    manifest = model.manifest
    token = language_token(manifest, "source_language", language, manifest.source_language)
    return source if token is None else with_language_token(source, manifest.languages, token)


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
