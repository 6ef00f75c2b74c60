"""The tokens that a model never generates."""

from model.bundle import Manifest


def suppressed_tokens(manifest: Manifest) -> tuple[int, ...]:
    """Returns the tokens whose logits are lowered, so that they are never generated.

    The no-speech token is not among them, because its probability is needed: the rules for
    timestamps suppress it.
    """
    tokens = manifest.transcription
    no_speech = None if tokens is None else tokens.no_speech
    return tuple(id_ for id_ in manifest.special_tokens.suppressed if id_ != no_speech)
