"""The configuration of a vision tower and its connector to a decoder. Imports no torch."""

from enum import StrEnum

from model.head_config import DenseConfig
from model.image_config import PatchConfig
from model.norm_config import NormConfig
from model.position_config import ConfigStruct
from model.stack_config import StackConfig


class PatchMerge(StrEnum):
    """How the vectors of a square of patches become one."""

    SHUFFLE = "shuffle"
    """They are concatenated, row by row: pixel shuffle (Laurençon et al. 2024, Idefics 3)."""
    MEAN = "mean"
    """Their mean (Gemma 3)."""


class VisionConfig(ConfigStruct, frozen=True, kw_only=True):
    """A vision tower, and the connector from its vectors to those of a decoder's tokens.

    Liu et al. 2023 (LLaVA), figure 1.

    Attributes:
        hidden_size: of the tower.
        norm: normalizes the embeddings of patches.
        keeps_class_tokens: whether class tokens become vectors of the prompt too.
        merge: how squares of patches are merged; None: they are not.
        merge_size: the side of such a square, in patches.
        merged_norm: normalizes the merged vectors.
        dense: the layers of the connector; the last one has the decoder's hidden size.
    """

    hidden_size: int
    norm: NormConfig | None = None
    encoder: StackConfig
    patches: PatchConfig
    keeps_class_tokens: bool = False
    merge: PatchMerge | None = None
    merge_size: int = 1
    merged_norm: NormConfig | None = None
    dense: tuple[DenseConfig, ...]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of an image's merged patches."""
        side = self.patches.size * self.merge_size
        return self.patches.height // side, self.patches.width // side

    @property
    def num_tokens(self) -> int:
        """The number of vectors that an image has in a prompt."""
        rows, columns = self.grid
        return rows * columns + (self.patches.num_class_tokens if self.keeps_class_tokens else 0)

    @property
    def merged_size(self) -> int:
        """The size of a vector after merging."""
        is_shuffled = self.merge == PatchMerge.SHUFFLE
        return self.hidden_size * (self.merge_size**2 if is_shuffled else 1)
