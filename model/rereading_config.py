"""The configuration of encoders whose decoder reads the text again. Imports no torch."""

from model.position_config import ConfigStruct


class RereadingConfig(ConfigStruct, frozen=True, kw_only=True):
    """The decoder's input: the token ``first``, then the text without its last token."""

    first: int
