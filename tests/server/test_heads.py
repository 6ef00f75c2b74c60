"""What encoders answer, against the pipelines of transformers with the same random weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import pipeline as make_pipeline

from client.encoder_types import Aggregation, LongInput, Question, ScoreFunction
from client.errors import TriuneError
from client.sync import Client
from tests import heads
from tests.serving import server_process

TEXTS = (
    "Angela Merkel met Barack Obama in Washington, unaffably.",
    "Ángela Müller\u0007 lives in 東京 🙂 and études are unaffable things to behold!",
    "x",
)
# Accents, composed and not, emoji, CJK, controls, spaces, punctuation.
CHARACTERS = st.sampled_from("aB é e\u0301ß東京🙂👩🏽\u200d🚀\u0000\u0007\t\n\u00a0,.-'ﬁ0Ω")
RANDOM_TEXTS = st.text(CHARACTERS, min_size=1, max_size=24).filter(lambda text: text.strip() != "")


@pytest.fixture(scope="module")
def client(head_bundles: Path) -> Iterator[Client]:
    with (
        server_process(head_bundles, "--threads", "1") as running,
        Client(running.target, timeout_seconds=60) as client,
    ):
        yield client


def refused(call: Any, *args: Any, **options: Any) -> TriuneError:
    with pytest.raises(TriuneError) as caught:
        call(*args, **options)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value


def pipe(task: str, name: str, **options: Any) -> Any:
    make: Any = make_pipeline
    return make(task, model=heads.model(name), tokenizer=heads.tokenizer(), **options)


def assert_entities_equal(ours: Any, theirs: list[dict[str, Any]], label: str) -> None:
    keys = [(x.label, x.start, x.end) for x in ours]
    assert keys == [(x[label], x["start"], x["end"]) for x in theirs]
    assert [x.score for x in ours] == pytest.approx([float(x["score"]) for x in theirs], abs=1e-4)


@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_entities_are_the_pipelines(client: Client, aggregation: Aggregation) -> None:
    reference = pipe("token-classification", "tagger", aggregation_strategy=aggregation.value)
    result = client.tag("tagger", TEXTS, aggregation=aggregation)
    label = "entity" if aggregation == Aggregation.NONE else "entity_group"
    num_entities = 0
    for text, output in zip(TEXTS, result.outputs, strict=True):
        assert_entities_equal(output.entities, reference(text), label)
        assert all(x.text == text[x.start : x.end] for x in output.entities)
        num_entities += len(output.entities)
    assert num_entities > 3


def test_labels_and_scores_can_be_left_out(client: Client) -> None:
    (everything,) = client.tag("tagger", TEXTS[0], ignored_labels=["nothing"]).outputs
    assert {"O", "PER"} <= {entity.label for entity in everything.entities}
    (kept,) = client.tag("tagger", TEXTS[0], ignored_labels=["O", "PER"], min_score=0.5).outputs
    expected = [x for x in everything.entities if x.label == "LOC" and x.score >= 0.5]
    assert list(kept.entities) == expected


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(RANDOM_TEXTS)
def test_an_entity_is_the_text_between_its_offsets(client: Client, text: str) -> None:
    (output,) = client.tag("tagger", text, ignored_labels=["nothing"]).outputs
    position = 0
    for entity in output.entities:
        assert position <= entity.start <= entity.end <= len(text)
        assert entity.text == text[entity.start : entity.end]
        position = entity.start
    # Everything is labelled, so what has letters is covered.
    covered = {i for entity in output.entities for i in range(entity.start, entity.end)}
    assert all(i in covered for i, character in enumerate(text) if character in "aBß東京0Ω")


def test_words_for_masks_are_the_pipelines(client: Client) -> None:
    reference = pipe("fill-mask", "filler")
    texts = ["Paris is the [MASK] of France.", "é🙂 [MASK] and [MASK] 東京"]
    targets = ["capital", "city", "unaffable", "##s"]
    known = [word for word in targets if word in heads.tokenizer().get_vocab()]
    cases: list[Any] = [{"top_k": 3}, {"targets": known}]
    for options in cases:
        result = client.fill_mask("filler", texts, **options)
        for text, output in zip(texts, result.outputs, strict=True):
            theirs = reference(text, **options)
            rows = [theirs] if isinstance(theirs[0], dict) else theirs
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
def test_labels_of_texts_and_pairs_are_the_pipelines(
    client: Client, name: str, function: str | None
) -> None:
    reference = pipe("text-classification", name)
    options = {"function_to_apply": "none" if function == "identity" else function}
    ours = None if function is None else ScoreFunction(function)
    pairs = [("Is it?", "It is 🙂."), (TEXTS[0], TEXTS[1])]
    singles = client.classify(name, TEXTS, score_function=ours).outputs
    doubles = client.classify(name, pairs=pairs, score_function=ours).outputs
    inputs = [{"text": x} for x in TEXTS] + [{"text": x, "text_pair": y} for x, y in pairs]
    for output, given_input in zip((*singles, *doubles), inputs, strict=True):
        theirs = reference(given_input, top_k=None, **options)
        assert [x.label for x in output.labels] == [x["label"] for x in theirs]
        expected = [x["score"] for x in theirs]
        assert [x.score for x in output.labels] == pytest.approx(expected, abs=1e-4)


def test_the_best_labels_only(client: Client) -> None:
    (whole,), (best,) = (client.classify("sorter", TEXTS[0], top_k=k).outputs for k in (None, 2))
    assert best.labels == whole.labels[:2]


def reference_answers(question: str, context: str, longest: int) -> list[tuple[float, int, int]]:
    """Every span of the context by the product of its probabilities: the slow way."""
    encoded = heads.tokenizer()(question, context, return_tensors="pt")
    with torch.no_grad():
        out = heads.model("answerer")(**encoded)
    sequence = encoded.sequence_ids(0)
    kept = [0] + [i for i, number in enumerate(sequence) if number == 1]
    start = dict(zip(kept, out.start_logits[0, kept].softmax(-1).tolist(), strict=True))
    end = dict(zip(kept, out.end_logits[0, kept].softmax(-1).tolist(), strict=True))
    spans: dict[tuple[int, int], float] = {}
    for first in kept[1:]:
        for last in range(first, min(first + longest, kept[-1] + 1)):
            # Whole words, as the pipeline aligned them.
            characters = (
                encoded.word_to_chars(0, encoded.token_to_word(0, first), 1).start,
                encoded.word_to_chars(0, encoded.token_to_word(0, last), 1).end,
            )
            spans[characters] = max(spans.get(characters, 0.0), start[first] * end[last])
    none = start[0] * end[0]
    return sorted([(x, *key) for key, x in spans.items()] + [(none, 0, 0)], reverse=True)


def test_answers_are_the_likeliest_spans(client: Client) -> None:
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


def test_a_cross_encoder_sorts_documents(client: Client) -> None:
    query, documents = "What is it?", ["a 🙂 thing", *TEXTS, "東京"]
    reference = pipe("text-classification", "judge")
    scores = [reference({"text": query, "text_pair": x}, top_k=None)[0]["score"] for x in documents]
    result = client.rerank("judge", query, documents)
    assert [x.score for x in result.outputs] == pytest.approx(sorted(scores)[::-1], abs=1e-4)
    for row in result.outputs:
        assert row.score == pytest.approx(scores[row.index], abs=1e-4)
    best = client.rerank("judge", query, documents, top_n=2, return_documents=True).outputs
    assert [x.document for x in best] == [documents[x.index] for x in result.outputs[:2]]


def test_an_embedding_model_sorts_by_cosine(client: Client) -> None:
    query, documents = "a thing", [*TEXTS, "a thing"]
    result = client.rerank("embedder", query, documents)
    vectors = [np.array(x.values) for x in client.embed("embedder", [query, *documents]).outputs]
    units = [vector / np.linalg.norm(vector) for vector in vectors]
    expected = [float(units[0] @ unit) for unit in units[1:]]
    assert result.outputs[0].index == 3
    for row in result.outputs:
        assert row.score == pytest.approx(expected[row.index], abs=1e-5)


@pytest.mark.parametrize("name", heads.NAMES)
def test_the_model_says_what_it_is(client: Client, name: str) -> None:
    model = client.get_model(name)
    assert model.mask_token == ("[MASK]" if name == "filler" else "")
    assert (model.embedding is not None) == (name == "embedder")
    if model.embedding is not None:
        assert (model.embedding.size, model.embedding.truncations) == (heads.SIZE, (8, 16))
        assert model.embedding.prompts == {"query": "query: ", "passage": ""}
    assert ("rerank" in model.tasks) == (name in {"judge", "embedder"})


LONG = " ".join(f"word{index} is é{index}" for index in range(40))


def test_what_is_too_long_is_an_error_cut_or_read_in_windows(client: Client) -> None:
    error = refused(client.embed, "embedder", ["short", LONG])
    assert error.violations[0].field == "inputs[1]"
    cut = {
        side: client.embed("embedder", LONG, long_input=side).outputs[0]
        for side in (LongInput.TRUNCATE_RIGHT, LongInput.TRUNCATE_LEFT)
    }
    ids = heads.tokenizer()(LONG, add_special_tokens=False)["input_ids"]
    for side, output in cut.items():
        room = heads.MAX_LENGTH - 2
        kept = ids[:room] if side == LongInput.TRUNCATE_RIGHT else ids[-room:]
        assert output.reading.truncated_tokens == len(ids) - room
        assert output.values == pytest.approx(mean_vector([101, *kept, 102]), abs=1e-4)
    windows = client.embed(
        "embedder", LONG, long_input=LongInput.WINDOWS, max_tokens=22, stride=5
    ).outputs[0]
    assert windows.reading.truncated_tokens == 0
    parts = [ids[i : i + 20] for i in range(0, len(ids), 15)]
    while len(parts) > 1 and len(ids) <= 15 * (len(parts) - 2) + 20:
        parts.pop()  # it holds nothing new
    assert windows.reading.windows == len(parts)
    vectors = np.array([mean_vector([101, *part, 102]) for part in parts])
    weights = np.array([len(part) for part in parts])[:, None]
    expected = (vectors * weights).sum(0) / weights.sum()
    assert windows.values == pytest.approx(expected, abs=1e-4)


def mean_vector(ids: list[int]) -> list[float]:
    with torch.no_grad():
        hidden = heads.model("embedder")(torch.tensor([ids])).last_hidden_state
    vector: list[float] = hidden[0].mean(0).tolist()
    return vector


def test_entities_of_a_long_text_have_no_duplicates(client: Client) -> None:
    (output,) = client.tag("tagger", LONG, stride=10, aggregation=Aggregation.NONE).outputs
    assert output.reading.windows > 1
    assert output.reading.truncated_tokens == 0
    starts = [entity.start for entity in output.entities]
    assert starts == sorted(set(starts))
    (all_,) = client.tag(
        "tagger", LONG, aggregation=Aggregation.NONE, ignored_labels=["nothing"]
    ).outputs
    offsets = heads.tokenizer()(LONG, add_special_tokens=False, return_offsets_mapping=True)
    assert [(x.start, x.end) for x in all_.entities] == offsets["offset_mapping"]


def test_the_answer_in_a_long_context_is_the_best_of_all_windows(client: Client) -> None:
    question = "Which word?"
    options: Any = {"top_k": 3, "max_answer_tokens": 4}
    (output,) = client.answer("answerer", [Question(question, LONG)], stride=8, **options).outputs
    assert output.reading.windows > 1
    # The same windows by hand, each as a context of its own.
    room = heads.MAX_LENGTH - 3 - len(heads.tokenizer()(question)["input_ids"]) + 2
    offsets = heads.tokenizer()(LONG, add_special_tokens=False, return_offsets_mapping=True)[
        "offset_mapping"
    ]
    firsts = range(0, len(offsets), room - 8)
    best: dict[tuple[int, int], float] = {}
    for first in firsts:
        part = offsets[first : first + room]
        text = LONG[part[0][0] : part[-1][1]]
        for score, start, end in reference_answers(question, text, 4)[:12]:
            key = (start + part[0][0], end + part[0][0])
            if end:
                best[key] = max(score, best.get(key, 0.0))
        if first + room >= len(offsets):
            break
    top = max(best, key=lambda key: best[key])
    assert (output.spans[0].start, output.spans[0].end) == top
    assert output.spans[0].score == pytest.approx(best[top], abs=1e-4)


def test_a_document_has_the_score_of_its_best_window(client: Client) -> None:
    query = "What is it?"
    result = client.rerank("judge", query, [LONG, "short"], long_input=LongInput.WINDOWS)
    row = next(x for x in result.outputs if x.index == 0)
    assert row.reading.windows > 1
    cut = client.rerank("judge", query, [LONG], long_input=LongInput.TRUNCATE_RIGHT).outputs[0]
    assert cut.reading.truncated_tokens > 0
    assert row.score >= cut.score - 1e-6  # the first window is what is left of a cut text


def test_a_pair_is_cut_where_it_is_longer(client: Client) -> None:
    (output,) = client.classify(
        "judge", pairs=[("short one", LONG)], long_input=LongInput.TRUNCATE_RIGHT
    ).outputs
    theirs = heads.tokenizer()("short one", LONG, truncation=True, return_tensors="pt")
    with torch.no_grad():
        logits = heads.model("judge")(**theirs).logits[0]
    assert output.usage.input_tokens == heads.MAX_LENGTH
    assert output.labels[0].score == pytest.approx(float(logits.sigmoid()), abs=1e-4)


def fields(error: TriuneError) -> str:
    return error.violations[0].field


def test_bad_input_is_named(client: Client) -> None:
    assert fields(refused(client.fill_mask, "filler", ["a [MASK]", "none"])) == "inputs[1]"
    assert "write [MASK]" in str(refused(client.fill_mask, "filler", ["none"]))
    assert fields(refused(client.fill_mask, "filler", "[MASK]", targets=["a", "two words"])) == (
        "options.targets[1]"
    )
    assert fields(refused(client.tag, "tagger", ["x", " "])) == "inputs[1]"
    assert fields(refused(client.tag, "tagger", "x", min_score=2.0)) == "options.min_score"
    assert fields(refused(client.tag, "judge", "x")) == "model"
    both = refused(client.classify, "judge", ["x"], pairs=[("a", "b")])
    assert fields(both) == "pairs"
    assert fields(refused(client.classify, "judge", pairs=[("a", "b"), ("a", "")])) == (
        "pairs[1].text_pair"
    )
    assert fields(refused(client.classify, "judge", "x", top_k=0)) == "options.top_k"
    windows = refused(client.classify, "judge", LONG, long_input=LongInput.WINDOWS)
    assert fields(windows) == "length.long_input"
    assert fields(refused(client.answer, "answerer", [Question("q", "")])) == "questions[0].context"
    room = refused(client.answer, "answerer", [Question("q", "c"), Question(LONG, LONG)])
    assert fields(room) == "questions[1]"
    assert fields(refused(client.rerank, "judge", "", ["d"])) == "query"
    assert fields(refused(client.rerank, "judge", "q", ["d", ""])) == "documents[1]"
    assert fields(refused(client.rerank, "judge", "q", [])) == "documents"
    assert fields(refused(client.embed, "embedder", "x", max_tokens=49)) == "length.max_tokens"
    stride = refused(
        client.embed, "embedder", LONG, long_input=LongInput.WINDOWS, max_tokens=10, stride=8
    )
    assert fields(stride) == "inputs[0]"
