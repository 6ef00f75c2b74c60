"""The default models, served: against their references, and in company."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from client.aio import AsyncClient
from client.sync import Client
from client.types import FinishReason, Message
from tests.defaults import references
from tests.serving import server_process

TIE = 1e-3  # two logits this close may change places


@pytest.fixture(scope="module")
def fp32(fp32_bundles: Path) -> Iterator[Client]:
    with server_process(fp32_bundles) as running, Client(running.target) as client:
        yield client


@pytest.fixture(scope="module")
def int8(int8_bundles: Path) -> Iterator[Client]:
    with server_process(int8_bundles) as running, Client(running.target) as client:
        yield client


def test_smollm2_answers_sensibly(int8: Client) -> None:
    question = [Message("user", "Why is the sky blue?")]
    pieces = list(int8.generate_stream("smollm2", messages=question, max_new_tokens=120))
    text = "".join(piece.text for piece in pieces)
    assert "sky" in text
    assert "scatter" in text
    assert len(pieces) > 20


def test_translation_reads_well(int8: Client) -> None:
    out = int8.translate("en-pt", ["The children were playing in the garden."])
    assert "crianças" in out.outputs[0].text
    assert "jardim" in out.outputs[0].text
    assert out.outputs[0].finish_reason == FinishReason.STOP
    back = int8.translate("pt-en", [out.outputs[0].text])
    assert "children" in back.outputs[0].text
    assert "garden" in back.outputs[0].text


def test_embeddings_are_unit_vectors_that_know_cats(int8: Client) -> None:
    result = int8.embed("minilm", ["a cat", "a kitten", "a bus"])
    cat, kitten, bus = (np.array(output.values) for output in result.outputs)
    for vector in (cat, kitten, bus):
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-3)
    assert cat @ kitten > cat @ bus + 0.2


def test_smollm2_fp32_equals_transformers(fp32: Client) -> None:
    """20 prompts, 64 tokens each. A difference is a tie only if the reference says so."""
    model, tokenizer = references.smollm2()
    for prompt in references.PROMPTS:
        ids = tokenizer(prompt)["input_ids"]
        ours = fp32.generate("smollm2", prompt, max_new_tokens=64, token_ids=True).outputs[0]
        assert tuple(ids) == fp32.tokenize("smollm2", prompt).outputs[0].token_ids
        theirs = references.greedy(model, ids, len(ours.token_ids))
        assert _same_up_to_ties(model, ids, ours.token_ids, theirs), prompt


def _same_up_to_ties(
    model: torch.nn.Module, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]
) -> bool:
    for step, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine != other:
            logits = references.next_logits(model, [*prompt, *theirs[:step]])
            return bool(abs(logits[mine] - logits[other]) <= TIE)
    return True


@pytest.mark.parametrize(("precision", "floor"), [("fp32", 0.9999), ("int8", 0.99)])
def test_minilm_equals_transformers(precision, floor, request) -> None:
    client: Client = request.getfixturevalue(precision)
    texts = [text for text in references.SENTENCES if text.strip()]
    ours = np.array([o.values for o in client.embed("minilm", texts).outputs])
    theirs = references.minilm_embeddings(texts)
    cosines = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1)
    assert cosines.min() >= floor


def test_en_pt_agrees_with_the_reference_reader(fp32: Client) -> None:
    """200 sentences and UI strings, token for token."""
    texts = references.translation_inputs()
    assert len(texts) == 200
    result = fp32.translate("en-pt", texts, token_ids=True)
    expected = references.marian("en-pt")
    equal = 0
    for text, output in zip(texts, result.outputs, strict=True):
        ids = [id_ for id_ in output.token_ids if id_ != expected.eos]
        equal += ids == expected.translate_ids(text)
    assert equal >= 190


def _mixed(num: int) -> list[tuple[str, str]]:
    """(model, text): all three kinds, lengths mixed."""
    texts = references.SENTENCES
    models = ("smollm2", "en-pt", "minilm", "pt-en")
    return [(models[i % 4], texts[i % len(texts)]) for i in range(num)]


def test_64_mixed_requests_at_once_give_what_they_give_alone(fp32_bundles: Path) -> None:
    work = _mixed(64)

    def run(client: Client, item: tuple[str, str]) -> tuple[float | int, ...]:
        model, text = item
        if model == "minilm":
            return client.embed(model, [text]).outputs[0].values
        if model == "smollm2":
            done = client.generate(model, [text], max_new_tokens=24, token_ids=True)
        else:
            done = client.translate(model, [text], token_ids=True)
        return done.outputs[0].token_ids

    with server_process(fp32_bundles) as running, Client(running.target) as client:
        alone = [run(client, item) for item in work]
        with ThreadPoolExecutor(max_workers=64) as pool:
            together = list(pool.map(lambda item: run(client, item), work))
    reference, _ = references.smollm2()
    for item, one, many in zip(work, alone, together, strict=True):
        if item[0] == "minilm":
            assert np.allclose(one, many, atol=1e-5)
        elif item[0] == "smollm2" and one != many:
            prompt = references.smollm2()[1](item[1])["input_ids"]
            assert _same_up_to_ties(reference, prompt, many, one), item
        else:
            assert one == many, item


async def test_streams_of_all_kinds_interleave(int8_bundles: Path) -> None:
    with server_process(int8_bundles) as running:
        async with AsyncClient(running.target) as client:

            async def text(stream) -> str:
                return "".join([piece.text async for piece in stream])

            answers = await asyncio.gather(
                text(client.generate_stream("smollm2", "Once upon a time", max_new_tokens=30)),
                text(client.translate_stream("en-pt", "Good morning.")),
                text(client.translate_stream("pt-en", "Bom dia.")),
            )
            assert all(answers)
            assert "Bom dia" in answers[1]
