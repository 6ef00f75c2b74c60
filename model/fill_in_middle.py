"""The prompt of a language model that fills in the middle of a text. Imports no torch."""

from model.graph_spec import Record


class FillInMiddle(Record, frozen=True, kw_only=True):
    """The tokens around the parts of a text whose middle the model writes, by their texts.

    The order is prefix, suffix, middle (PSM, Bavarian et al. 2022). The tokenizer adds its own
    special tokens to the whole.
    """

    prefix: str
    suffix: str
    middle: str

    def render(self, prefix: str, suffix: str) -> str:
        """The prompt, after which the model writes what is between ``prefix`` and ``suffix``."""
        return self.prefix + prefix + self.suffix + suffix + self.middle
