"""The configuration of encoders whose decoder reads the text again. Imports no torch."""

from model.position_config import ConfigStruct


class RereadingConfig(ConfigStruct, frozen=True, kw_only=True):
    """The decoder's input: the token ``first``, then the text without its last token.

    Without ``first``, it starts with the text's last token, which is a language (mBART).
    """

    first: int | None = None
