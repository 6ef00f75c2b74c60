"""Tag with the request's labels, against the formulas of Zaratiana et al. 2023."""

import itertools
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from tests import gliner_models
from tests.gliner_models import (
    GLINER,
    GLINER_INT8,
    MAX_TOKENS,
    MAX_WORDS,
    SAMPLE,
    Entity,
    Rules,
    prompted,
    reference,
)
from tests.heads import write_bundle_of
from tests.server.test_retrieval_models import rejected_field
from tests.serving import server_process

LABELS = ("person", "city", "date")
TEXTS = (
    SAMPLE,
    "a",
    "The dog \u200b met an e\u0301tude by Ángela_Pérez-Gómez 🙂 in 東京.",
    "\u200b",
    "Call 555-0199, or write to her!",
)
WORDS = [
    "Anna",
    "met",
    "Ben",
    "in",
    "Rome",
    ",",
    "then",
    "Carla",
    "flew",
    "from",
    "Oslo",
    "to",
    "Lima",
    "on",
    "Monday",
]
LONG = " ".join(itertools.islice(itertools.cycle(WORDS), 40))
NO_STRIDE = pb.LengthOptions(long_input=pb.LONG_INPUT_WINDOWS, stride=0)


@pytest.fixture(scope="module")
def stub(
    gliner_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[inference_pb2_grpc.InferenceServiceStub]:
    folder = tmp_path_factory.mktemp("taggers")
    for name in gliner_models.NAMES:
        shutil.copytree(gliner_bundles / name, folder / name)
    write_bundle_of(folder, "tagger")
    with (
        server_process(folder, "--threads", "1") as running,
        grpc.insecure_channel(running.target) as channel,
    ):
        yield inference_pb2_grpc.InferenceServiceStub(channel)


def tag(
    stub: Any,
    texts: Any,
    labels: Any = LABELS,
    length: Any = None,
    model: str = GLINER,
    **options: Any,
) -> list[Any]:
    request = pb.TagRequest(
        model=model,
        inputs=texts,
        options=pb.TagOptions(candidate_labels=labels, **options),
        length=length,
    )
    return list(stub.Tag(request, timeout=60).outputs)


def entities(output: Any) -> list[Entity]:
    return [Entity(x.start, x.end, x.label, x.score) for x in output.entities]


def check(found: list[Entity], expected: list[Entity]) -> None:
    """The order of entities with the same start is that of their scores."""
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    scores = [each.score for each in expected]
    np.testing.assert_allclose([each.score for each in found], scores, atol=2e-5)


@pytest.mark.parametrize("min_score", [None, 0.3, 0.9])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
def test_finds_what_the_greedy_search_does(
    stub: Any, min_score: float | None, *, nested: bool, multi_label: bool
) -> None:
    outputs = tag(stub, TEXTS, min_score=min_score, nested=nested, multi_label=multi_label)
    rules = Rules(0.5 if min_score is None else min_score, nested, multi_label)
    for text, output in zip(TEXTS, outputs, strict=True):
        check(entities(output), reference(text, LABELS, rules))
        assert all(each.text == text[each.start : each.end] for each in output.entities)
        assert output.usage.input_tokens == len(prompted(text, LABELS).ids)
        assert output.reading.windows == 1
    assert outputs[0].entities
    assert not outputs[3].entities


def test_rules_differ() -> None:
    """Otherwise the test above could not tell them apart."""
    found = [
        reference(SAMPLE, LABELS, Rules(0.3, *flags))
        for flags in itertools.product((False, True), repeat=2)
    ]
    assert all(one != other for one, other in itertools.combinations(found, 2))


@pytest.mark.parametrize("model", [GLINER, GLINER_INT8])
def test_entities_do_not_depend_on_the_batch(stub: Any, model: str) -> None:
    together = tag(stub, TEXTS, model=model, min_score=0.0)
    for text, output in zip(TEXTS, together, strict=True):
        (alone,) = tag(stub, [text], model=model, min_score=0.0)
        check(entities(alone), entities(output))


def test_requests_with_other_labels_share_batches(stub: Any) -> None:
    requests = [
        (text, tuple(f"{label} {number}" for label in LABELS[:count]))
        for number, text in enumerate(TEXTS)
        for count in (1, 2, 3)
    ]
    with ThreadPoolExecutor(len(requests)) as pool:
        found = list(pool.map(lambda each: tag(stub, [each[0]], each[1]), requests))
    for (text, labels), (output,) in zip(requests, found, strict=True):
        check(entities(output), reference(text, labels))


def test_int8_is_near_fp32(stub: Any) -> None:
    (output,) = tag(stub, [SAMPLE], model=GLINER_INT8, min_score=0.0, nested=True, multi_label=True)
    expected = reference(SAMPLE, LABELS, Rules(0.0, nested=True, multi_label=True))
    scores = {each[:3]: each.score for each in expected}
    common = [each for each in entities(output) if each[:3] in scores]
    assert len(common) > len(expected) // 2
    assert max(abs(each.score - scores[each[:3]]) for each in common) < 0.1


def test_some_labels_are_left_out_and_others_count_once(stub: Any) -> None:
    (output,) = tag(stub, [SAMPLE], (*LABELS, "city"), ignored_labels=["city"])
    expected = [each for each in reference(SAMPLE, LABELS) if each.label != "city"]
    assert len(expected) < len(reference(SAMPLE, LABELS))
    check(entities(output), expected)


def chunks(text: str) -> list[tuple[int, str]]:
    """The start and the text of windows of ``MAX_WORDS`` words."""
    spans = prompted(text, LABELS).spans
    bounds = [
        (spans[first][0], spans[min(first + MAX_WORDS, len(spans)) - 1][1])
        for first in range(0, len(spans), MAX_WORDS)
    ]
    return [(start, text[start:end]) for start, end in bounds]


def in_windows(text: str) -> list[Entity]:
    """The entities of :func:`chunks`, each alone."""
    return [
        each._replace(start=start + each.start, end=start + each.end)
        for start, part in chunks(text)
        for each in reference(part, LABELS)
    ]


def test_long_texts_have_windows_of_whole_words(stub: Any) -> None:
    (output,) = tag(stub, [LONG], length=NO_STRIDE)
    assert output.reading.windows == len(chunks(LONG)) == 3
    check(entities(output), in_windows(LONG))
    (overlapping,) = tag(stub, [LONG])
    assert overlapping.reading.windows == 3
    assert [x[:3] for x in entities(overlapping)] != [x[:3] for x in entities(output)]
    inner = reference(chunks(LONG)[0][1], LABELS)[:2]
    check(entities(overlapping)[:2], inner)


def test_long_texts_are_cut_or_rejected(stub: Any) -> None:
    parts, cuts = chunks(LONG), pb.LengthOptions(long_input=pb.LONG_INPUT_TRUNCATE_RIGHT)
    (output,) = tag(stub, [LONG], length=cuts)
    check(entities(output), reference(parts[0][1], LABELS))
    assert output.reading.truncated_tokens == 24
    spans = prompted(LONG, LABELS).spans
    start = spans[-MAX_WORDS][0]
    (output,) = tag(stub, [LONG], length=pb.LengthOptions(long_input=pb.LONG_INPUT_TRUNCATE_LEFT))
    expected = [
        each._replace(start=start + each.start, end=start + each.end)
        for each in reference(LONG[start:], LABELS)
    ]
    check(entities(output), expected)
    refuses = pb.LengthOptions(long_input=pb.LONG_INPUT_ERROR)
    assert rejected_field(tag, stub, [SAMPLE, LONG], length=refuses) == "inputs[1]"


def test_a_word_that_is_longer_than_a_window_is_cut(stub: Any) -> None:
    text = f"Anna {'qx' * 49} Ben"
    (output,) = tag(stub, [text], min_score=0.0)
    assert output.reading.windows == 3
    starts = [each.start for each in output.entities]
    assert starts == sorted(starts)
    assert {(0, 4), (104, 107)} <= {(each.start, each.end) for each in output.entities}


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"labels": ()}, "options.candidate_labels"),
    "empty": ({"labels": ("a", " ")}, "options.candidate_labels[1]"),
    "many": ({"labels": [f"{index}" for index in range(101)]}, "options.candidate_labels"),
    "long": ({"labels": ["a" * 257]}, "options.candidate_labels[0]"),
    "too long together": ({"labels": [f"label {i}" for i in range(40)]}, "inputs[0]"),
    "score": ({"min_score": 1.5}, "options.min_score"),
    "aggregation": ({"aggregation": pb.AGGREGATION_FIRST}, "options.aggregation"),
    "stride": (
        {"length": pb.LengthOptions(max_tokens=20, stride=30), "texts": [LONG]},
        "inputs[0]",
    ),
    "no text": ({"texts": [SAMPLE, " "]}, "inputs[1]"),
    "labels of its own": ({"model": "tagger"}, "options.candidate_labels"),
    "nested": ({"model": "tagger", "labels": (), "nested": True}, "options.nested"),
    "several": ({"model": "tagger", "labels": (), "multi_label": True}, "options.multi_label"),
    "characters": ({"texts": ["a"] * 4000, "labels": [f"{i:250}" for i in range(20)]}, "inputs"),
    "windows": ({"texts": ["a " * 16 * 4100], "length": NO_STRIDE}, "inputs[0]"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_field(stub: Any, name: str) -> None:
    options, field = ERRORS[name]
    assert rejected_field(tag, stub, **{"texts": [SAMPLE], **options}) == field


def test_too_many_spans_are_refused_before_they_are_computed(stub: Any) -> None:
    labels = [chr(ord("a") + index) for index in range(22)]
    texts = ["a " * MAX_WORDS] * 4096
    with pytest.raises(grpc.RpcError, match="scores of spans") as caught:
        tag(stub, texts, labels)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_label_may_be_as_long_as_the_model_reads(stub: Any) -> None:
    labels = tuple(f"label number {index}" for index in range(13))
    assert len(prompted("a", labels).ids) < MAX_TOKENS < len(prompted(SAMPLE, labels).ids)
    (output,) = tag(stub, [SAMPLE], labels, min_score=0.0)
    assert output.reading.windows > 1
    (short,) = tag(stub, ["a"], labels)
    check(entities(short), reference("a", labels))


def test_attends_to_texts_without_labels(stub: Any) -> None:
    (output,) = stub.Attend(pb.AttendRequest(model=GLINER, inputs=["a cat"]), timeout=60).outputs
    assert list(output.tokens) == ["[CLS]", "a", "cat", "[SEP]"]
