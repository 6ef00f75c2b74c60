"""The template of a pair of texts. Imports no torch."""

from model.graph_spec import Record


class PairTemplate(Record, frozen=True, kw_only=True):
    """The text around the two texts of a pair, for language models that rerank.

    The whole text is tokenized without the tokenizer's own special tokens.
    """

    before: str = ""
    between: str = ""
    after: str = ""

    def render(self, first: str, second: str) -> str:
        """Both texts in the template."""
        return self.before + first + self.between + second + self.after

    @property
    def num_characters(self) -> int:
        """Number of characters of all parts."""
        return len(self.before) + len(self.between) + len(self.after)
