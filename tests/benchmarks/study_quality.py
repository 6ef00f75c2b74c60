"""Phoneme errors of spelling to sound."""


def phonemes(text: str) -> list[str]:
    """The phonemes in ``AH T EH N``."""
    return text.split()
