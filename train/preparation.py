"""Random changes of rows in each epoch: masks, pairs of sentences, augmented images."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from train.batches import Row
from train.images import augment_row
from train.recipe import ObjectiveKind, Recipe
from train.rows import mask_row, pair_rows
from train.vocabulary import Vocabulary


@dataclass(frozen=True)
class Preparation:
    """Draws the changes per row and epoch, independent of the process that computes the row."""

    recipe: Recipe
    rows: Sequence[Row]
    vocabulary: Vocabulary | None

    def lengths(self, epoch: int) -> list[int]:
        """Length of each row in ``epoch``, in tokens."""
        if not self.recipe.training.next_sentence:
            return [row.length for row in self.rows]
        return [
            self._paired(index, self._rng(index, epoch)).length for index in range(len(self.rows))
        ]

    def row(self, index: int, epoch: int) -> Row:
        """Row ``index`` as training sees it in ``epoch``."""
        training, row = self.recipe.training, self.rows[index]
        if training.augmentation is not None:
            return augment_row(row, training.augmentation, self._rng(index, epoch))
        if self.recipe.objective != ObjectiveKind.MASKED or self.vocabulary is None:
            return row
        rng = self._rng(index, epoch)
        if training.next_sentence:
            row = self._paired(index, rng)
        return mask_row(row, training.mask_share, self.vocabulary, rng)

    def _paired(self, index: int, rng: random.Random) -> Row:
        """The row, or its first text with another row's second; whole if that is too long."""
        row = pair_rows(self.rows[index], self.rows[rng.randrange(len(self.rows))], rng)
        if row.length > self.recipe.data.max_length:
            return replace(self.rows[index], follows=1)
        return row

    def _rng(self, index: int, epoch: int) -> random.Random:
        return random.Random(f"{self.recipe.seed}:{epoch}:{index}")
