"""Turns examples of texts into tokenized rows."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Encoding

from model.bundle import MultiVector
from model.conversation import Part
from model.examples import (
    AnswerExample,
    ClassificationExample,
    MaskedExample,
    RankingExample,
    TaggingExample,
    TextExample,
    TranslationExample,
)
from model.late_interaction import document_ids, query_ids
from train.batches import IGNORED, Row
from train.recipe import ObjectiveKind
from train.vocabulary import Vocabulary


@dataclass(frozen=True)
class TextRowEncoder:
    """Turns examples into rows.

    Attributes:
        labels: a classifier's labels, in the order of its logits.
        reading: how queries and documents are tokenized.

    Raises:
        ValueError: a label is not in ``labels``, the example has an image, or the model has no
            chat template for a conversation.
    """

    vocabulary: Vocabulary
    labels: tuple[str, ...] = ()
    reading: MultiVector | None = None

    def next_token(self, example: TextExample) -> Row:
        """Each id after the prompt is predicted from the ids before it; so are answers."""
        if example.image:
            raise ValueError("the model reads texts, and it has an image")
        if example.turns:
            return _row_of(self.vocabulary.conversation(example.turns))
        prompt = self.vocabulary.prompt(example.prompt)
        text = [*self.vocabulary.continuation(example.text), *self.vocabulary.end]
        return _row_of([Part(prompt, is_answer=False), Part(text, is_answer=True)])

    def sequence_to_sequence(self, example: TranslationExample) -> Row:
        return replace(
            target_row(self.vocabulary, example.target),
            sources=self.vocabulary.source(example.source),
        )

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
        encoding = self.vocabulary.tokenizer.encode(example.text)
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
        ids, num_attended = query_ids(self.vocabulary.tokenizer.encode(example.query).ids, reading)
        return Row(
            inputs=ids,
            targets=[0],
            num_attended=num_attended,
            documents=[
                document_ids(self.vocabulary.tokenizer.encode(document).ids, reading)
                for document in (example.relevant, *example.others)
            ],
        )

    def _label(self, name: str) -> int:
        if name not in self.labels:
            raise ValueError(f"no training example has the label {name}")
        return self.labels.index(name)

    def _pair(self, first: str, second: str) -> Encoding:
        return (
            self.vocabulary.tokenizer.encode(first, second)
            if second
            else self.vocabulary.tokenizer.encode(first)
        )

    def encode(self, objective: ObjectiveKind, example: Any) -> list[Row]:
        """The rows of ``example`` for ``objective``: one, unless it has several documents."""
        encode: Callable[[Any], Row | list[Row]] = getattr(self, objective.value)
        rows = encode(example)
        return rows if isinstance(rows, list) else [rows]


def _row_of(parts: list[Part]) -> Row:
    ids = [id_ for part in parts for id_ in part.ids]
    targets = [id_ if part.is_answer else IGNORED for part in parts for id_ in part.ids]
    return Row(inputs=ids[:-1], targets=targets[1:])


def target_row(vocabulary: Vocabulary, text: str) -> Row:
    """Teacher forcing: the decoder's inputs are the targets shifted right, after their start."""
    targets = [*vocabulary.continuation(text), *vocabulary.end]
    start = vocabulary.target_start
    ignored = [IGNORED] * (len(start) - 1)
    return Row(inputs=[*start, *targets[:-1]], targets=[*ignored, *targets])


def mask_row(row: Row, share: float, vocabulary: Vocabulary, rng: random.Random) -> Row:
    """Masks ``share`` of the tokens: 80 % become the mask, 10 % another token, 10 % stay.

    Devlin et al. 2018, section 3.1. At least one token is chosen.
    """
    inputs, targets = list(row.inputs), [IGNORED] * len(row.inputs)
    candidates = [index for index, id_ in enumerate(inputs) if id_ not in vocabulary.special]
    chosen = [index for index in candidates if rng.random() < share]
    if not chosen and candidates:
        chosen = [rng.choice(candidates)]
    for index in chosen:
        targets[index] = inputs[index]
        draw = rng.random()
        if draw < 0.8:
            inputs[index] = vocabulary.mask
        elif draw < 0.9:
            inputs[index] = rng.choice(vocabulary.ordinary)
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
