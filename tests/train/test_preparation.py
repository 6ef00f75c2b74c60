"""Rows that change in each epoch: pairs of sentences and masks."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from model.config import HeadConfig, HeadKind, Kind
from model.initialise import random_weights
from model.transformer import Transformer
from tests.architectures import BERT
from train.batches import IGNORED, Row, TrainingBatch
from train.objectives import TrainingModule
from train.preparation import Preparation
from train.recipe import (
    DataRecipe,
    ObjectiveKind,
    Recipe,
    TokenizerKind,
    TokenizerRecipe,
    TrainingRecipe,
)
from train.regularization import TrainingKernels
from train.report import TrainingReport
from train.state import StateFolder
from train.steps import Optimization, StepResult
from train.tokenizer import BOS, EOS, special_tokens, train_tokenizer
from train.trainer import Rows, Trainer
from train.vocabulary import Vocabulary

MASKED = structs.replace(BERT, head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=True))
VOCABULARY = Vocabulary(
    train_tokenizer(TokenizerRecipe(kind=TokenizerKind.CHARACTERS), Kind.ENCODER, ["abcdef"]),
    special_tokens(Kind.ENCODER),
)
MAX_LENGTH, BATCH_TOKENS = 40, 64
RECIPE = Recipe(
    name="pairs",
    license="Apache-2.0",
    objective=ObjectiveKind.MASKED,
    data=DataRecipe(source="synthetic:runs", max_length=MAX_LENGTH),
    training=TrainingRecipe(
        num_steps=120, batch_tokens=BATCH_TOKENS, validate_every=120, next_sentence=True
    ),
)


class RecordedOptimization(Optimization):
    """Records the batches of all steps."""

    batches: list[TrainingBatch]

    def step(self, batches: Sequence[TrainingBatch]) -> StepResult:
        self.batches.extend(batches)
        return super().step(batches)


def _pair(num_first: int, num_second: int) -> Row:
    first, second = [BOS, *[7] * num_first, EOS], [*[8] * num_second, EOS]
    ids = [*first, *second]
    segments = [*[0] * len(first), *[1] * len(second)]
    return Row(inputs=ids, targets=[IGNORED] * len(ids), segments=segments)


def test_batches_of_paired_texts_stay_within_the_budget(tmp_path: Path) -> None:
    rows = [_pair(1 + index % 5, 1 + 7 * index % 29) for index in range(200)]
    preparation = Preparation(RECIPE, rows, VOCABULARY)
    kernels = TrainingKernels(RECIPE.training.attention_dropout)
    model = Transformer(MASKED, kernels)
    model.load_state_dict(random_weights(MASKED, 0))
    module = TrainingModule(model, kernels, RECIPE.objective, next_sentence=True)
    steps = RecordedOptimization(module, RECIPE.training)
    steps.batches = []
    report = TrainingReport(RECIPE.name, RECIPE.training.num_steps, is_quiet=True)
    validation = [preparation.row(index, -1) for index in range(10)]
    state = StateFolder(tmp_path, {})
    Trainer(steps, Rows(train=rows, validation=validation), 0, state, tmp_path, preparation).run(
        report
    )
    sizes = [batch.inputs.numel() for batch in steps.batches]
    assert len(sizes) == RECIPE.training.num_steps
    assert max(sizes) <= BATCH_TOKENS
    follows = [
        int(label)
        for batch in steps.batches
        if batch.follows is not None
        for label in batch.follows
    ]
    assert {0, 1} == set(follows)


def test_a_pair_that_is_too_long_stays_whole() -> None:
    rows = [_pair(30, 2), _pair(2, 30)]
    preparation = Preparation(RECIPE, rows, VOCABULARY)
    prepared = [preparation.row(index, epoch) for index in (0, 1) for epoch in range(30)]
    assert {row.length for row in prepared} == {rows[0].length, 2 + 2 + 2 + 1}
