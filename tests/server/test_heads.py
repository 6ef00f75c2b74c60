"""Encoder tasks against transformers pipelines with the same random weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import pipeline as make_pipeline

from client.encoder_types import Aggregation, LongInput, Question, ScoreFunction
from client.sync import Client
from tests import heads
from tests.server.clients import connected
from tests.server.encoder_calls import LONG, error_of, field_of, reference_answers

TEXTS = (
    "Angela Merkel met Barack Obama in Washington, unaffably.",
    "Ángela Müller\u0007 lives in 東京 🙂 and études are unaffable things to behold!",
    "x",
)
# Composed and decomposed accents, emoji, CJK, control characters, spaces, punctuation.
CHARACTERS = st.sampled_from("aB é e\u0301ß東京🙂👩🏽\u200d🚀\u0000\u0007\t\n\u00a0,.-'ﬁ0Ω")
RANDOM_TEXTS = st.text(CHARACTERS, min_size=1, max_size=24).filter(lambda text: text.strip() != "")


@pytest.fixture(scope="module")
def client(head_bundles: Path) -> Iterator[Client]:
    with connected(head_bundles, "--threads", "1") as client:
        yield client


def pipe(task: str, name: str, **options: Any) -> Any:
    make: Any = make_pipeline
    return make(task, model=heads.model(name), tokenizer=heads.tokenizer(), **options)


def assert_entities_equal(actual: Any, expected: list[dict[str, Any]], label: str) -> None:
    keys = [(x.label, x.start, x.end) for x in actual]
    assert keys == [(x[label], x["start"], x["end"]) for x in expected]
    assert [x.score for x in actual] == pytest.approx(
        [float(x["score"]) for x in expected], abs=1e-4
    )


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_entities_match_the_transformers_pipeline(client: Client, aggregation: Aggregation) -> None:
    reference = pipe("token-classification", "tagger", aggregation_strategy=aggregation.value)
    result = client.tag("tagger", TEXTS, aggregation=aggregation)
    label = "entity" if aggregation == Aggregation.NONE else "entity_group"
    num_entities = 0
    for text, output in zip(TEXTS, result.outputs, strict=True):
        assert_entities_equal(output.entities, reference(text), label)
        assert all(x.text == text[x.start : x.end] for x in output.entities)
        num_entities += len(output.entities)
    assert num_entities > 3


def test_omits_labels_and_scores_on_request(client: Client) -> None:
    (all_entities,) = client.tag("tagger", TEXTS[0], ignored_labels=["nothing"]).outputs
    assert {"O", "PER"} <= {entity.label for entity in all_entities.entities}
    (filtered,) = client.tag("tagger", TEXTS[0], ignored_labels=["O", "PER"], min_score=0.5).outputs
    expected = [x for x in all_entities.entities if x.label == "LOC" and x.score >= 0.5]
    assert list(filtered.entities) == expected


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RANDOM_TEXTS)
def test_entity_text_matches_its_offsets(client: Client, text: str) -> None:
    (output,) = client.tag("tagger", text, ignored_labels=["nothing"]).outputs
    position = 0
    for entity in output.entities:
        assert position <= entity.start <= entity.end <= len(text)
        assert entity.text == text[entity.start : entity.end]
        position = entity.start
    # No label is ignored, so every letter is part of an entity.
    covered = {i for entity in output.entities for i in range(entity.start, entity.end)}
    assert all(i in covered for i, character in enumerate(text) if character in "aBß東京0Ω")


def test_mask_predictions_match_the_transformers_pipeline(client: Client) -> None:
    reference = pipe("fill-mask", "filler")
    texts = ["Paris is the [MASK] of France.", "é🙂 [MASK] and [MASK] 東京"]
    targets = ["capital", "city", "unaffable", "##s"]
    known = [word for word in targets if word in heads.tokenizer().get_vocab()]
    cases: list[Any] = [{"top_k": 3}, {"targets": known}]
    for options in cases:
        result = client.fill_mask("filler", texts, **options)
        for text, output in zip(texts, result.outputs, strict=True):
            expected_masks = reference(text, **options)
            rows = [expected_masks] if isinstance(expected_masks[0], dict) else expected_masks
            assert len(rows) == len(output.masks) == text.count("[MASK]")
            for mask, row in zip(output.masks, rows, strict=True):
                assert text[mask.start : mask.end] == "[MASK]"
                assert [x.token_id for x in mask.candidates] == [x["token"] for x in row]
                assert [x.text for x in mask.candidates] == [x["token_str"] for x in row]
                expected = [x["score"] for x in row]
                assert [x.score for x in mask.candidates] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "function"),
    [("judge", None), ("sorter", None), ("sorter", "softmax"), ("judge", "identity")],
)
def test_classification_matches_the_transformers_pipeline(
    client: Client, name: str, function: str | None
) -> None:
    reference = pipe("text-classification", name)
    options = {"function_to_apply": "none" if function == "identity" else function}
    score_function = None if function is None else ScoreFunction(function)
    pairs = [("Is it?", "It is 🙂."), (TEXTS[0], TEXTS[1])]
    singles = client.classify(name, TEXTS, score_function=score_function).outputs
    doubles = client.classify(name, pairs=pairs, score_function=score_function).outputs
    inputs = [{"text": x} for x in TEXTS] + [{"text": x, "text_pair": y} for x, y in pairs]
    for output, pipeline_input in zip((*singles, *doubles), inputs, strict=True):
        expected_labels = reference(pipeline_input, top_k=None, **options)
        assert [x.label for x in output.labels] == [x["label"] for x in expected_labels]
        expected = [x["score"] for x in expected_labels]
        assert [x.score for x in output.labels] == pytest.approx(expected, abs=1e-4)


def test_returns_only_the_top_labels(client: Client) -> None:
    (whole,), (best,) = (client.classify("sorter", TEXTS[0], top_k=k).outputs for k in (None, 2))
    assert best.labels == whole.labels[:2]


def test_answers_are_the_most_probable_spans(client: Client) -> None:
    question, context = "Who lives?", TEXTS[1]
    options: Any = {"top_k": 8, "max_answer_tokens": 5, "allow_no_answer": True}
    (output,) = client.answer("answerer", [Question(question, context)], **options).outputs
    expected = reference_answers(question, context, 5)[:8]
    assert [(x.start, x.end) for x in output.spans] == [(start, end) for _, start, end in expected]
    assert [x.score for x in output.spans] == pytest.approx([x for x, *_ in expected], abs=1e-4)
    assert all(x.text == context[x.start : x.end] for x in output.spans)
    (best,) = client.answer("answerer", [Question(question, context)]).outputs
    assert len(best.spans) == 1
    assert best.spans[0].text != ""


def test_cross_encoder_reranks_documents(client: Client) -> None:
    query, documents = "What is it?", ["a 🙂 thing", *TEXTS, "東京"]
    reference = pipe("text-classification", "judge")
    scores = [reference({"text": query, "text_pair": x}, top_k=None)[0]["score"] for x in documents]
    result = client.rerank("judge", query, documents)
    assert [x.score for x in result.outputs] == pytest.approx(sorted(scores)[::-1], abs=1e-4)
    for row in result.outputs:
        assert row.score == pytest.approx(scores[row.index], abs=1e-4)
    best = client.rerank("judge", query, documents, top_n=2, return_documents=True).outputs
    assert [x.document for x in best] == [documents[x.index] for x in result.outputs[:2]]


def test_embedding_model_reranks_by_cosine(client: Client) -> None:
    query, documents = "a thing", [*TEXTS, "a thing"]
    result = client.rerank("embedder", query, documents)
    # The model's prompts for queries and passages, if the request names none.
    outputs = [
        *client.embed("embedder", query, prompt_name="query").outputs,
        *client.embed("embedder", documents, prompt_name="passage").outputs,
    ]
    vectors = [np.array(x.values) for x in outputs]
    units = [vector / np.linalg.norm(vector) for vector in vectors]
    expected = [float(units[0] @ unit) for unit in units[1:]]
    assert result.outputs[0].index == 3
    for row in result.outputs:
        assert row.score == pytest.approx(expected[row.index], abs=1e-5)


@pytest.mark.parametrize("name", heads.NAMES)
def test_model_metadata_describes_the_head(client: Client, name: str) -> None:
    model = client.get_model(name)
    assert model.mask_token == ("[MASK]" if name == "filler" else "")
    assert (model.embedding is not None) == (name == "embedder")
    if model.embedding is not None:
        assert (model.embedding.size, model.embedding.truncations) == (heads.SIZE, (8, 16))
        assert model.embedding.prompts == {"query": "query: ", "passage": ""}
    assert ("rerank" in model.tasks) == (name in {"judge", "embedder"})


def test_errors_name_the_invalid_field(client: Client) -> None:
    assert field_of(error_of(client.fill_mask, "filler", ["a [MASK]", "none"])) == "inputs[1]"
    assert "write [MASK]" in str(error_of(client.fill_mask, "filler", ["none"]))
    assert field_of(error_of(client.fill_mask, "filler", "[MASK]", targets=["a", "two words"])) == (
        "options.targets[1]"
    )
    assert field_of(error_of(client.tag, "tagger", ["x", " "])) == "inputs[1]"
    assert field_of(error_of(client.tag, "tagger", "x", min_score=2.0)) == "options.min_score"
    assert field_of(error_of(client.tag, "judge", "x")) == "model"
    both = error_of(client.classify, "judge", ["x"], pairs=[("a", "b")])
    assert field_of(both) == "pairs"
    assert field_of(error_of(client.classify, "judge", pairs=[("a", "b"), ("a", "")])) == (
        "pairs[1].text_pair"
    )
    assert field_of(error_of(client.classify, "judge", "x", top_k=0)) == "options.top_k"
    windows = error_of(client.classify, "judge", LONG, long_input=LongInput.WINDOWS)
    assert field_of(windows) == "length.long_input"
    assert (
        field_of(error_of(client.answer, "answerer", [Question("q", "")])) == "questions[0].context"
    )
    room = error_of(client.answer, "answerer", [Question("q", "c"), Question(LONG, LONG)])
    assert field_of(room) == "questions[1]"
    assert field_of(error_of(client.rerank, "judge", "", ["d"])) == "query"
    assert field_of(error_of(client.rerank, "judge", "q", ["d", ""])) == "documents[1]"
    assert field_of(error_of(client.rerank, "judge", "q", [])) == "documents"
    assert field_of(error_of(client.embed, "embedder", "x", max_tokens=49)) == "length.max_tokens"
    stride = error_of(
        client.embed, "embedder", LONG, long_input=LongInput.WINDOWS, max_tokens=10, stride=8
    )
    assert field_of(stride) == "inputs[0]"
