"""Measures a model's task quality through its exported graphs, in ONNX Runtime."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.checkpoint import Checkpoint, HeldOutSet
from export.decoding import (
    DecodingInputs,
    decode_in_graph,
    greedy_answers,
    padded,
    prefill_source,
)
from export.errors import SourceError
from export.fidelity.figures import log_softmax
from export.fidelity.subject import GraphFolder, Subject
from export.image_sources import ImageSource
from export.quality.entities import decode_entities
from export.quality.images import images_of
from export.quality.metrics import (
    character_error_rate,
    entity_f1,
    exact_match,
    macro_f1,
    token_f1,
    translation_metrics,
)
from export.quality.model import BATCH, Metrics, Model, encode, ids_of
from export.quality.ponder import ponder_metrics
from export.quality.retrieval import ranking, retrieval
from export.speech import Source
from model.bundle import Task
from model.bundle_files import to_json
from model.config import Kind
from model.examples import (
    AnswerExample,
    ClassificationExample,
    MaskedExample,
    TaggingExample,
    TextExample,
    TranslationExample,
)
from model.quality import QUALITY_FILE, Measurement, Quality

MASK_SHARE = 0.15
MAX_ANSWER_TOKENS = 15
# The number of first examples to measure; for retrieval, all documents of a query are embedded.
MAX_EXAMPLES = {Task.EMBED: 100}
DEFAULT_LENGTH_FACTOR, MIN_NEW_TOKENS, MAX_NEW_TOKENS = 3.0, 8, 256


def measure_quality(
    checkpoint: Checkpoint, held_out: HeldOutSet, fp32: GraphFolder, bundle: GraphFolder | None
) -> Measurement:
    """The metrics of the fp32 graphs and of the bundle's graphs, side by side.

    Args:
        bundle: None if the bundle's graphs are the fp32 graphs.

    Raises:
        SourceError: an example does not fit the model.
        UnsupportedError: a package is missing.
    """
    subject = Subject.of(checkpoint)
    factor = checkpoint.max_length_factor or DEFAULT_LENGTH_FACTOR
    task = held_out.task
    examples = held_out.examples[: MAX_EXAMPLES.get(task)]

    def measure(graphs: GraphFolder) -> Metrics:
        model = Model(subject, checkpoint.labels, factor, checkpoint.embedding, graphs)
        metrics = MEASURES[task](model, examples)
        return metrics | ponder_metrics(subject, graphs, task, examples)

    of_fp32 = measure(fp32)
    metrics = of_fp32 if bundle is None else measure(bundle)
    generates = task in (Task.TRANSLATE, Task.GENERATE)
    return Measurement(
        task=task,
        dataset=held_out.name,
        sha256=held_out.sha256,
        num_examples=len(examples),
        decoding="greedy" if generates else "",
        metrics=metrics,
        fp32_metrics=of_fp32,
    )


def write_quality(
    checkpoint: Checkpoint,
    held_out: HeldOutSet | None,
    directory: Path,
    fp32: GraphFolder,
    bundle: GraphFolder | None = None,
) -> None:
    """Writes ``quality.json`` into ``directory``, unless there is no held-out set."""
    if held_out is not None:
        measurement = measure_quality(checkpoint, held_out, fp32, bundle)
        (directory / QUALITY_FILE).write_bytes(to_json(Quality(measurements=(measurement,))))


def translation(model: Model, examples: Sequence[TranslationExample]) -> Metrics:
    """BLEU, chrF and exact match of greedy translations."""
    sources = [model.subject.encode(example.source) for example in examples]
    prompts = [model.subject.target_start] * len(sources)
    outputs = _generate(model, prompts, sources)
    return translation_metrics(outputs, [example.target for example in examples])


def generation(model: Model, examples: Sequence[TextExample]) -> Metrics:
    """The perplexity of texts after their prompts; exact match for texts with a prompt.

    Of a conversation, the last answer is the text.
    """
    if model.subject.kind == Kind.ENCODER_DECODER:
        return image_to_text(model, examples)
    subject, total, count = model.subject, 0.0, 0
    prompts, texts = [], []
    for number, example in enumerate(examples, 1):
        if example.turns:
            try:
                prompt, answer = subject.conversation(example.turns)
            except ValueError as error:
                raise SourceError(f"held-out example {number}: {error}") from error
            prompts.append(prompt)
            texts.append(answer)
            continue
        prompts.append(subject.encode(example.prompt))
        text = subject.encode(example.text, add_special_tokens=False)
        texts.append([*text, *subject.special_tokens.eos[:1]])
    for start in range(0, len(prompts), BATCH):
        rows = slice(start, start + BATCH)
        first = [prompt or [subject.special_tokens.bos or 0] for prompt in prompts[rows]]
        inputs = DecodingInputs(prompts=first, num_steps=max(map(len, texts[rows])))
        decoder = model.graphs.decoder(len(first), inputs.capacity, 1)
        logits = decode_in_graph(decoder, inputs, padded(texts[rows])).logits
        for row, text in enumerate(texts[rows]):
            logprobs = log_softmax(logits[row, : len(text)])
            total -= float(logprobs[np.arange(len(text)), text].sum())
            count += len(text)
    metrics = {"perplexity": math.exp(total / count)}
    if all(example.prompt or example.turns for example in examples):
        outputs = _generate(model, prompts, None)
        references = [
            example.turns[-1].content if example.turns else example.text for example in examples
        ]
        metrics["exact_match"] = exact_match(outputs, references)
    return metrics


def image_to_text(model: Model, examples: Sequence[TextExample]) -> Metrics:
    """Exact match and character error rate of greedy texts about images."""
    spec = model.subject.image
    images = images_of(examples, spec, has_texts=True)
    size = 0 if spec is None else spec.num_tokens
    sources = [ImageSource(image, size, []) for image in images]
    outputs = _generate(model, [model.subject.target_start] * len(sources), sources)
    references = [example.text for example in examples]
    return {
        "exact_match": exact_match(outputs, references),
        "character_error_rate": character_error_rate(outputs, references),
    }


def _generate(
    model: Model, prompts: list[list[int]], sources: Sequence[Source] | None
) -> list[str]:
    """Greedy outputs; rows of similar length share a batch."""
    subject = model.subject
    keys = prompts if sources is None else sources
    order = sorted(range(len(keys)), key=lambda index: len(keys[index]))
    outputs: dict[int, str] = {}
    encoder = None if sources is None else model.graphs.encoder()
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        longest = max(len(keys[index]) for index in chosen)
        limit = subject.max_positions - max(len(prompts[index]) for index in chosen)
        num_steps = max(MIN_NEW_TOKENS, math.ceil(model.max_length_factor * longest))
        if subject.image is not None:  # its size says nothing about the text
            num_steps = MAX_NEW_TOKENS
        inputs = DecodingInputs(
            prompts=[prompts[index] for index in chosen],
            num_steps=max(1, min(num_steps, limit, MAX_NEW_TOKENS)),
            sources=None if sources is None else [sources[index] for index in chosen],
            suppressed=subject.special_tokens.suppressed,
        )
        decoder = model.graphs.decoder(len(chosen), inputs.capacity, inputs.source_capacity)
        if encoder is not None and inputs.sources is not None:
            prefill_source(encoder, decoder, inputs.sources)
        eos = subject.special_tokens.eos
        for index, row in zip(chosen, greedy_answers(decoder, inputs, eos), strict=True):
            outputs[index] = subject.tokenizer.decode([id_ for id_ in row if id_ not in eos])
    return [outputs[index] for index in range(len(keys))]


def fill_mask(model: Model, examples: Sequence[MaskedExample]) -> Metrics:
    """Accuracy and perplexity at masked tokens: 15 % of each text, chosen with a fixed seed."""
    subject, rng = model.subject, random.Random(0)
    rows, targets = [], []
    for example in examples:
        encoding = subject.encode_pair(example.text, example.following)
        pairs = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        candidates = [index for index, (_, is_special) in enumerate(pairs) if not is_special]
        chosen = {index for index in candidates if rng.random() < MASK_SHARE}
        if candidates and not chosen:  # a blank text has no token to mask
            chosen = {rng.choice(candidates)}
        targets.append({index: encoding.ids[index] for index in chosen})
        mask = subject.special_tokens.mask or 0
        ids = [mask if index in chosen else id_ for index, id_ in enumerate(encoding.ids)]
        rows.append((ids, encoding.type_ids))
    correct, total, count = 0, 0.0, 0
    for logits, wanted in zip(encode(model, rows), targets, strict=True):
        for index, id_ in wanted.items():
            logprobs = log_softmax(logits[index])
            correct += int(logprobs.argmax() == id_)
            total -= float(logprobs[id_])
            count += 1
    return {"accuracy": correct / count, "perplexity": math.exp(total / count)}


def classification(model: Model, examples: Sequence[ClassificationExample]) -> Metrics:
    """Accuracy, and macro F1 over labels."""
    subject = model.subject
    images = images_of(examples, subject.image, has_texts=subject.vocabulary_size > 0)
    rows = [ids_of(subject.encode_pair(e.text, e.pair)) for e in examples if e.text]
    outputs = [model.labels[int(logits.argmax())] for logits in encode(model, rows, images)]
    references = [example.label for example in examples]
    return {
        "accuracy": exact_match(outputs, references),
        "f1": macro_f1(outputs, references),
    }


def tagging(model: Model, examples: Sequence[TaggingExample]) -> Metrics:
    """F1 of entities, and the share of texts in which all entities are correct."""
    encodings = [model.subject.tokenizer.encode(example.text) for example in examples]
    found = [
        decode_entities(model.labels, example.text, encoding, logits)
        for example, encoding, logits in zip(
            examples, encodings, encode(model, list(map(ids_of, encodings))), strict=True
        )
    ]
    references = [{(s.start, s.end, s.label) for s in example.spans} for example in examples]
    frozen = [list(map(frozenset, sets)) for sets in (found, references)]
    return {"f1": entity_f1(found, references), "exact_match": exact_match(*frozen)}


def answering(model: Model, examples: Sequence[AnswerExample]) -> Metrics:
    """Exact match and word F1 of the most probable span."""
    encodings = [model.subject.encode_pair(e.question, e.context) for e in examples]
    outputs, references = [], []
    all_logits = encode(model, list(map(ids_of, encodings)))
    for example, encoding, logits in zip(examples, encodings, all_logits, strict=True):
        marks = zip(encoding.type_ids, encoding.special_tokens_mask, strict=True)
        inside = [
            index for index, (segment, special) in enumerate(marks) if segment and not special
        ]
        spans = (
            (logits[first, 0] + logits[last, 1], first, last)
            for position, first in enumerate(inside)
            for last in inside[position : position + MAX_ANSWER_TOKENS]
        )
        _, first, last = max(spans)
        start, end = encoding.offsets[first][0], encoding.offsets[last][1]
        outputs.append(example.context[start:end].strip())
        references.append(example.context[example.start : example.end].strip())
    scores = [token_f1(*pair) for pair in zip(outputs, references, strict=True)]
    return {
        "exact_match": exact_match(outputs, references),
        "f1": sum(scores) / len(scores),
    }


MEASURES: dict[Task, Callable[[Model, Any], Metrics]] = {
    Task.TRANSLATE: translation,
    Task.GENERATE: generation,
    Task.FILL_MASK: fill_mask,
    Task.CLASSIFY: classification,
    Task.TAG: tagging,
    Task.ANSWER: answering,
    Task.RERANK: ranking,
    Task.EMBED: retrieval,
}
