"""Objectives: from an example to tokenized rows, and from a batch to its loss."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from model.adaptive import record_ponder
from model.bundle import MultiVector
from model.config import Kind
from model.examples import (
    AnswerExample,
    ClassificationExample,
    MaskedExample,
    RankingExample,
    TaggingExample,
    TextExample,
    TranslationExample,
)
from model.kernels import Step
from model.late_interaction import document_ids, query_ids
from model.transformer import Transformer
from train.batches import IGNORED, Row, TrainingBatch
from train.recipe import ObjectiveKind
from train.regularization import TrainingKernels, ponder_time
from train.tokenizer import BOS, EOS, MASK, SPECIAL


@dataclass(frozen=True)
class TextRowEncoder:
    """Turns examples into rows.

    Attributes:
        labels: a classifier's labels, in the order of its logits.
        reading: how queries and documents are tokenized.

    Raises:
        ValueError: a label is not in ``labels``, or the example has an image.
    """

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    reading: MultiVector | None = None

    def next_token(self, example: TextExample) -> Row:
        """Each id after the prompt is predicted from the ids before it."""
        if example.image:
            raise ValueError("the model reads texts, and it has an image")
        prompt = self.tokenizer.encode(example.prompt).ids  # begins with BOS
        text = self.tokenizer.encode(example.text, add_special_tokens=False).ids
        ids = [*prompt, *text, EOS]
        targets = [*([IGNORED] * (len(prompt) - 1)), *ids[len(prompt) :]]
        return Row(inputs=ids[:-1], targets=targets)

    def sequence_to_sequence(self, example: TranslationExample) -> Row:
        source = self.tokenizer.encode(example.source).ids
        return replace(target_row(self.tokenizer, example.target), sources=source)

    def masked(self, example: MaskedExample) -> Row:
        """The text itself; :func:`mask_row` masks it differently in each epoch."""
        encoding = self._pair(example.text, example.following)
        return Row(
            inputs=encoding.ids, targets=[IGNORED] * len(encoding), segments=encoding.type_ids
        )

    def classification(self, example: ClassificationExample) -> Row:
        if example.image:
            raise ValueError("the model reads texts, and it has an image")
        encoding = self._pair(example.text, example.pair)
        label = self._label(example.label)
        return Row(inputs=encoding.ids, targets=[label], segments=encoding.type_ids)

    def token_classification(self, example: TaggingExample) -> Row:
        """The first token of an entity is labelled ``B-X``, its other tokens ``I-X``."""
        encoding = self.tokenizer.encode(example.text)
        targets = []
        begun: set[int] = set()
        pairs = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        for (start, end), is_special in pairs:
            if is_special:
                targets.append(IGNORED)
                continue
            name = "O"
            covered = example.text[start:end]
            first = end - len(covered.lstrip())  # some tokens include the space before the word
            for index, span in enumerate(example.spans):
                if first < span.end and end > span.start:
                    name = f"{'I' if index in begun else 'B'}-{span.label}"
                    begun.add(index)
            targets.append(self._label(name))
        return Row(inputs=encoding.ids, targets=targets, segments=encoding.type_ids)

    def span(self, example: AnswerExample) -> Row:
        """The targets are the first and last token of the answer.

        Raises:
            ValueError: no token covers the answer.
        """
        encoding = self._pair(example.question, example.context)
        inside = [
            index
            for index, ((start, end), segment, is_special) in enumerate(
                zip(encoding.offsets, encoding.type_ids, encoding.special_tokens_mask, strict=True)
            )
            if segment == 1 and not is_special and start < example.end and end > example.start
        ]
        if not inside:
            raise ValueError(f"no token covers the answer {example.start} to {example.end}")
        targets = [inside[0], inside[-1]]
        return Row(inputs=encoding.ids, targets=targets, segments=encoding.type_ids)

    def relevance(self, example: RankingExample) -> list[Row]:
        """One row per document; the target is 1 for the relevant document, 0 for the others."""
        encodings = [
            self._pair(example.query, document) for document in (example.relevant, *example.others)
        ]
        return [
            Row(inputs=encoding.ids, targets=[int(index == 0)], segments=encoding.type_ids)
            for index, encoding in enumerate(encodings)
        ]

    def retrieval(self, example: RankingExample) -> Row:
        """The query with its documents.

        Raises:
            ValueError: it is unknown how queries and documents are tokenized.
        """
        reading = self.reading
        if reading is None:
            raise ValueError("the model reads no queries")
        ids, num_attended = query_ids(self.tokenizer.encode(example.query).ids, reading)
        return Row(
            inputs=ids,
            targets=[0],
            num_attended=num_attended,
            documents=[
                document_ids(self.tokenizer.encode(document).ids, reading)
                for document in (example.relevant, *example.others)
            ],
        )

    def _label(self, name: str) -> int:
        if name not in self.labels:
            raise ValueError(f"no training example has the label {name}")
        return self.labels.index(name)

    def _pair(self, first: str, second: str) -> Encoding:
        return self.tokenizer.encode(first, second) if second else self.tokenizer.encode(first)

    def encode(self, objective: ObjectiveKind, example: Any) -> list[Row]:
        """The rows of ``example`` for ``objective``: one, unless it has several documents."""
        encode: Callable[[Any], Row | list[Row]] = getattr(self, objective.value)
        rows = encode(example)
        return rows if isinstance(rows, list) else [rows]


def target_row(tokenizer: Tokenizer, text: str) -> Row:
    """Teacher forcing: the decoder's inputs are the targets shifted right, after BOS."""
    targets = tokenizer.encode(text).ids  # ends with EOS
    return Row(inputs=[BOS, *targets[:-1]], targets=targets)


def mask_row(row: Row, share: float, vocabulary_size: int, rng: random.Random) -> Row:
    """Masks ``share`` of the tokens: 80 % become the mask, 10 % another token, 10 % stay.

    Devlin et al. 2018, section 3.1. At least one token is chosen.
    """
    inputs, targets = list(row.inputs), [IGNORED] * len(row.inputs)
    candidates = [index for index, id_ in enumerate(inputs) if id_ >= len(SPECIAL)]
    chosen = [index for index in candidates if rng.random() < share]
    if not chosen and candidates:
        chosen = [rng.choice(candidates)]
    for index in chosen:
        targets[index] = inputs[index]
        draw = rng.random()
        if draw < 0.8:
            inputs[index] = MASK
        elif draw < 0.9:
            inputs[index] = rng.randrange(len(SPECIAL), vocabulary_size)
    return replace(row, inputs=inputs, targets=targets)


def pair_rows(row: Row, other: Row, rng: random.Random) -> Row:
    """``row``, or with probability 1/2 its first text with the second text of ``other``."""
    if row.segments is None or other.segments is None or 1 not in row.segments:
        return row
    if rng.random() < 0.5 or 1 not in other.segments:
        return replace(row, follows=1)
    first, second = row.segments.index(1), other.segments.index(1)
    inputs = [*row.inputs[:first], *other.inputs[second:]]
    segments = [*row.segments[:first], *other.segments[second:]]
    return replace(
        row, inputs=inputs, segments=segments, targets=[IGNORED] * len(inputs), follows=0
    )


# Objectives with one target per vector of logits.
SINGLE_TARGETS = (
    ObjectiveKind.CLASSIFICATION,
    ObjectiveKind.TOKEN_CLASSIFICATION,
    ObjectiveKind.RELEVANCE,
)


class TrainingModule(nn.Module):
    """The model and its losses. ``next_sentence``: BERT's second head, not part of the bundle.

    Attributes:
        num_steps: steps that the optimizer has taken, for losses with a schedule.
    """

    def __init__(
        self,
        model: Transformer,
        kernels: TrainingKernels,
        objective: ObjectiveKind,
        *,
        next_sentence: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.kernels, self.objective = model, kernels, objective
        self.num_steps = 0
        self.next_sentence: nn.Module | None = None
        if next_sentence:
            size = model.config.hidden_size
            self.next_sentence = nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 2))

    def train(self, mode: bool = True) -> "TrainingModule":
        """Switches dropout on or off."""
        self.kernels.is_training = mode
        return super().train(mode)

    def forward(self, batch: TrainingBatch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        """The losses of targets and of next sentences, and the regularization terms.

        Returns:
            sums of the two losses ``[2]``; the balancing loss and the ponder time ``[2]``
        """
        self.kernels.balancing_losses.clear()
        with record_ponder(self.model) as ponders:
            hidden = self._hidden(batch)
        logits, targets = self._logits(hidden, batch)
        if self.objective == ObjectiveKind.RELEVANCE:
            total = _sum_of_binary_losses(logits, targets)
        else:
            total = _sum_of_losses(logits, targets, label_smoothing)
        follows = torch.zeros(())
        if self.next_sentence is not None and batch.follows is not None:
            follows = _sum_of_losses(self.next_sentence(hidden[:, 0]), batch.follows, 0.0)
        losses = self.kernels.balancing_losses
        balancing = torch.stack(losses).mean() if losses else torch.zeros(())
        return torch.stack([total, follows]), torch.stack([balancing, ponder_time(ponders)])

    def _hidden(self, batch: TrainingBatch) -> Tensor:
        model = self.model
        if model.config.kind == Kind.ENCODER:
            self.kernels.begin(batch.lengths, batch.inputs.shape[1])
            if batch.pixels is not None and model.image_stream is not None:
                return model.encode_pairs(batch.inputs, batch.lengths, batch.pixels, batch.segments)
            if batch.pixels is not None:
                return model.encode_images(batch.pixels)
            return model.encode(batch.inputs, batch.lengths, batch.segments)
        states, step = None, Step.whole(batch.lengths)
        if batch.pixels is not None and model.config.patches is not None:
            source_lengths = torch.full_like(batch.lengths, model.config.patches.num_tokens)
            self.kernels.begin(source_lengths, model.config.patches.num_tokens)
            states = model.encode_image_source(batch.pixels)
            step = Step.whole(batch.lengths, source_lengths)
        if batch.sources is not None and batch.source_lengths is not None:
            self.kernels.begin(batch.source_lengths, batch.sources.shape[1])
            states = model.encode_source(batch.sources, batch.source_lengths)
            step = Step.whole(batch.lengths, batch.source_lengths)
        self.kernels.begin(batch.lengths, batch.inputs.shape[1])
        return model.decode(batch.inputs, step, states).hidden

    def _logits(self, hidden: Tensor, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Logits ``[n, classes]`` and their targets ``[n]``."""
        objective, targets = self.objective, batch.targets
        if objective in SINGLE_TARGETS:
            logits = self.model.pool(hidden, batch.lengths)
            return logits.flatten(0, -2), targets.flatten()
        if objective == ObjectiveKind.SPAN:
            logits = self.model.pool(hidden, batch.lengths).transpose(1, 2)  # [batch, 2, length]
            is_padding = torch.arange(logits.shape[2]) >= batch.lengths[:, None, None]
            return logits.masked_fill(is_padding, -1e4).flatten(0, 1), targets.flatten()
        chosen = targets != IGNORED  # computes the logits of the whole vocabulary for these only
        return self.model.logits(hidden[chosen]), targets[chosen]


def _sum_of_losses(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    return functional.cross_entropy(
        logits.float(),
        targets,
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def _sum_of_binary_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed cross-entropy of ``logits [n, 1]``; ``targets [n]`` are 0, 1 or :data:`IGNORED`."""
    chosen = targets != IGNORED
    return functional.binary_cross_entropy_with_logits(
        logits[chosen, 0].float(), targets[chosen].float(), reduction="sum"
    )
