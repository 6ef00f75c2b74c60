"""Measures the steps of adaptive computation time on held-out examples, through the graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from export.decoding import lengths_of, padded, prefill_source
from export.fidelity.subject import GraphFolder, Subject
from export.runtime import Array, DecodeSession, Floats
from model.bundle import Task
from model.examples import TextExample, TranslationExample
from model.graph_spec import ATTENDED_LENGTHS, REMAINDERS, UPDATES

BATCH = 32
Pair = tuple[str, str]

# The texts that an encoder reads.
ENCODER_TEXTS: dict[Task, Callable[[Any], Pair]] = {
    Task.FILL_MASK: lambda example: (example.text, example.following),
    Task.CLASSIFY: lambda example: (example.text, example.pair),
    Task.TAG: lambda example: (example.text, ""),
    Task.ANSWER: lambda example: (example.question, example.context),
    Task.RERANK: lambda example: (example.query, example.relevant),
    Task.EMBED: lambda example: (example.relevant, ""),
}


def ponder_metrics(
    subject: Subject, graphs: GraphFolder, task: Task, examples: Sequence[Any]
) -> dict[str, float]:
    """Mean updates and remainder per token, for each stack with adaptive computation time.

    For a decoder, over the tokens of prompts and references. Empty without such a stack.
    """
    has_ponder = {
        name
        for name, graph in graphs.graphs.items()
        if any(output.name == UPDATES for output in graph.outputs)
    }
    sums: dict[str, list[float]] = {}
    for start in range(0, len(examples), BATCH):
        batch = examples[start : start + BATCH]
        if "encode" in has_ponder:
            _add(sums, "encoder", _encode(subject, graphs, task, batch))
        if "decode" in has_ponder:
            _add(sums, "decoder", _decode(subject, graphs, batch))
    return {
        f"{stack}_{name}": total / count
        for stack, (*totals, count) in sums.items()
        for name, total in zip((UPDATES, REMAINDERS), totals, strict=True)
    }


def _add(sums: dict[str, list[float]], stack: str, figures: list[Floats]) -> None:
    """Adds the ``figures`` and their number of tokens to ``sums``."""
    new = [*(float(figure.sum()) for figure in figures), float(figures[0].size)]
    sums[stack] = [a + b for a, b in zip(sums.get(stack, [0.0] * len(new)), new, strict=True)]


def _encode(
    subject: Subject, graphs: GraphFolder, task: Task, examples: Sequence[Any]
) -> list[Floats]:
    """Updates and remainders ``[tokens]`` of the batch."""
    session = graphs.encoder()
    if task == Task.TRANSLATE:
        rows, segments = [subject.encode(example.source) for example in examples], None
    else:
        pairs = [ENCODER_TEXTS[task](example) for example in examples]
        encodings = [subject.encode_pair(*pair) for pair in pairs]
        rows = [encoding.ids for encoding in encodings]
        segments = [encoding.type_ids for encoding in encodings]
    ids, lengths = padded(rows), lengths_of(rows)
    inputs: dict[str, Array] = {"token_ids": ids, "lengths": lengths}
    names = {spec.name for spec in session.graph.inputs}
    if segments is not None and "segment_ids" in names:
        inputs["segment_ids"] = padded(segments)
    if "logit_positions" in names:
        inputs["logit_positions"] = np.zeros(1, np.int32)
    if ATTENDED_LENGTHS in names:
        inputs[ATTENDED_LENGTHS] = lengths
    outputs = session.run(**inputs)
    is_valid = np.arange(ids.shape[1]) < lengths[:, None]
    return [outputs[name][is_valid] for name in (UPDATES, REMAINDERS)]


def _target(subject: Subject, example: TranslationExample | TextExample) -> list[int]:
    """The decoder's input tokens."""
    if isinstance(example, TranslationExample):
        return [*subject.target_start, *subject.encode(example.target)]
    text = subject.encode(example.text, add_special_tokens=False)
    return [*subject.encode(example.prompt), *text]


def _decode(
    subject: Subject, graphs: GraphFolder, examples: Sequence[TranslationExample | TextExample]
) -> list[Floats]:
    """Updates and remainders ``[tokens]`` of the batch; each row runs token by token."""
    rows = [_target(subject, example) for example in examples]
    sources = [
        subject.encode(example.source)
        for example in examples
        if isinstance(example, TranslationExample)
    ]
    ids, lengths = padded(rows), lengths_of(rows)
    longest_source = max((len(source) for source in sources), default=1)
    decoder: DecodeSession = graphs.decoder(len(rows), ids.shape[1], longest_source)
    extra: dict[str, Array] = {}
    if sources:
        prefill_source(graphs.encoder(), decoder, sources)
        extra = {
            "source_lengths": lengths_of(sources),
            "max_source_length": np.array(longest_source),
        }
    figures: dict[str, list[Floats]] = {UPDATES: [], REMAINDERS: []}
    for index in range(ids.shape[1]):
        outputs = decoder.step_outputs(
            (UPDATES, REMAINDERS),
            0,
            token_ids=ids[:, index : index + 1],
            logit_positions=np.arange(len(rows)),
            num_cached_tokens=np.full(len(rows), index),
            num_new_tokens=np.ones(len(rows)),
            max_total_length=np.array(index + 1),
            **extra,
        )
        for name, values in figures.items():
            values.append(outputs[name][lengths > index])
    return [np.concatenate(values) for values in figures.values()]
