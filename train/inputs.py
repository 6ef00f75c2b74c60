"""What a model reads: its vocabulary and its images, and the rows of a data set."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from model.bundle import ImageSpec, MultiVector, SpecialTokens
from model.native_checkpoint import TOKENIZER_FILE
from train.architecture import KINDS
from train.batches import Row
from train.data.dataset import Dataset, texts_of
from train.errors import DataError, RecipeError
from train.images import ImageRowEncoder, encoder_of, image_to_read
from train.preparation import Preparation
from train.read_recipe import has_texts
from train.recipe import ObjectiveKind, Recipe
from train.retrieval_architecture import reading_of
from train.start import start_tokenizer
from train.state import STATE_FILE, STATE_FOLDER
from train.steps import barrier
from train.tokenizer import special_tokens, train_tokenizer
from train.trainer import Rows
from train.vocabulary import Vocabulary, vocabulary_of


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of a model: texts, with a vocabulary, images, or both.

    ``reading``: how queries and documents are tokenized.
    """

    vocabulary: Vocabulary | None
    image: ImageSpec | None
    reading: MultiVector | None = None

    @property
    def tokenizer(self) -> Tokenizer | None:
        return None if self.vocabulary is None else self.vocabulary.tokenizer

    @property
    def tokens(self) -> SpecialTokens:
        """The special tokens."""
        return SpecialTokens() if self.vocabulary is None else self.vocabulary.tokens

    @property
    def vocabulary_size(self) -> int:
        """The number of tokens; 0 without texts."""
        return 0 if self.tokenizer is None else self.tokenizer.get_vocab_size()


def inputs_of(recipe: Recipe, start: Checkpoint | None, out: Path, dataset: Dataset) -> Inputs:
    """The inputs of the recipe's model.

    Args:
        out: the training's folder, whose state keeps the tokenizer.

    Raises:
        TrainingError: the tokenizer cannot be trained or used, or ``start`` reads other inputs.
    """
    image = image_to_read(recipe, start)
    if not _needs_tokenizer(recipe, start):
        return Inputs(vocabulary=None, image=image)
    tokenizer = _tokenizer(recipe, start, out, dataset)
    tokens = special_tokens(KINDS[recipe.objective]) if start is None else start.special_tokens
    reading = None
    if recipe.retrieval is not None:
        reading = reading_of(recipe.retrieval, recipe.data.max_length, tokenizer, tokens)
    vocabulary = vocabulary_of(tokenizer, tokens, recipe, start)
    return Inputs(vocabulary=vocabulary, image=image, reading=reading)


def encode(recipe: Recipe, inputs: Inputs, labels: tuple[str, ...], dataset: Dataset) -> Rows:
    """The rows for training and validation; texts that are too long are left out.

    Raises:
        DataError: an example cannot be encoded, or all are too long.
    """
    encoder = encoder_of(recipe.objective, inputs.vocabulary, inputs.image, labels, inputs.reading)
    is_of_images = isinstance(encoder, ImageRowEncoder)
    limit = math.inf if is_of_images else recipe.data.max_length
    if recipe.retrieval is not None:  # its texts are cut, and all texts of a query share a batch
        limit = recipe.training.batch_tokens
    parts, num_dropped = {}, 0
    for name in ("train", "validation"):
        rows: list[Row] = []
        for number, example in enumerate(getattr(dataset, name), 1):
            try:
                rows += encoder.encode(recipe.objective, example)
            except ValueError as error:
                raise DataError(f"data: {name} example {number}: {error}") from error
        parts[name] = [row for row in rows if row.length - row.num_image_tokens <= limit]
        if name == "train":
            num_dropped = len(rows) - len(parts[name])
        if not parts[name]:
            field = "data.max_length" if recipe.retrieval is None else "training.batch_tokens"
            raise DataError(f"{field}: no example for {name} is that short")
    if recipe.objective == ObjectiveKind.MASKED:  # the same masks in each validation
        preparation = Preparation(recipe, parts["validation"], inputs.vocabulary)
        indices = range(len(parts["validation"]))
        parts["validation"] = [preparation.row(index, -1) for index in indices]
    return Rows(**parts, num_dropped=num_dropped)


def _needs_tokenizer(recipe: Recipe, start: Checkpoint | None) -> bool:
    if recipe.model is not None or start is None:
        return has_texts(recipe)
    return start.config.vocabulary_size > 0


def _tokenizer(recipe: Recipe, start: Checkpoint | None, out: Path, dataset: Dataset) -> Tokenizer:
    """The tokenizer, trained by the first process and kept in the state.

    A second training of it may differ. Before the first checkpoint nothing depends on it, and the
    recipe may still change.
    """
    kept = out / STATE_FOLDER / TOKENIZER_FILE
    is_needed = kept.is_file() and kept.with_name(STATE_FILE).is_file()
    if (not dist.is_initialized() or dist.get_rank() == 0) and not is_needed:
        if start is not None:
            tokenizer = start_tokenizer(start)
        elif recipe.tokenizer is None:
            raise RecipeError("tokenizer: missing")
        else:
            kind = KINDS[recipe.objective]
            tokenizer = train_tokenizer(recipe.tokenizer, kind, texts_of(dataset.train))
            if recipe.retrieval is not None:
                tokenizer.add_special_tokens(list(recipe.retrieval.markers))
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".partial")
        partial.write_text(tokenizer.to_str(), encoding="utf-8")
        partial.replace(kept)
    barrier()
    return _read_tokenizer(kept)


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_str(path.read_text("utf-8"))
    except Exception as error:
        # The library raises plain Exception.
        raise DataError(f"{path}: {error}") from error
