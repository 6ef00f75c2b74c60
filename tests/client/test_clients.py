"""Both clients against a real server: same results, streamed or not."""

from contextlib import aclosing, closing

import grpc
import pytest

from client import health
from client.aio import AsyncClient
from client.errors import TriuneError
from client.sync import Client
from client.types import FinishReason, ModelKind, ModelState

DATES, COUNTING, MAJORITY = "dates", "tiny-decoder", "tiny-classifier"
TEXTS = ["3 March 2021", "12 May 1987"]


def test_translate(target: str) -> None:
    with Client(target) as client:
        result = client.translate(DATES, TEXTS, token_ids=True)
    assert result.model == DATES
    assert [output.text for output in result.outputs] == ["2021-03-03", "1987-05-12"]
    assert result.outputs[0].finish_reason is FinishReason.STOP
    assert result.outputs[0].token_ids
    assert result.usage.output_tokens == sum(row.usage.output_tokens for row in result.outputs)
    assert result.timing.total_seconds > 0


def test_pieces_of_a_stream_add_up_to_the_result(target: str) -> None:
    with Client(target) as client:
        whole = client.translate(DATES, TEXTS, token_ids=True)
        pieces = list(client.translate_stream(DATES, TEXTS, token_ids=True))
    for index, output in enumerate(whole.outputs):
        mine = [piece for piece in pieces if piece.index == index]
        assert "".join(piece.text for piece in mine) == output.text
        assert [token for piece in mine for token in piece.token_ids] == list(output.token_ids)
        assert [piece.finish_reason for piece in mine if piece.finish_reason] == [
            output.finish_reason
        ]
        assert mine[-1].usage == output.usage
        assert mine[-1].timing is not None


async def test_asyncio_returns_the_same(target: str) -> None:
    async with AsyncClient(target) as client:
        translated = await client.translate(DATES, TEXTS)
        pieces = [piece async for piece in client.translate_stream(DATES, TEXTS[0])]
        generated = await client.generate(COUNTING, "7,", max_new_tokens=4)
        streamed = [
            piece async for piece in client.generate_stream(COUNTING, "7,", max_new_tokens=4)
        ]
        classified = await client.classify(MAJORITY, ["12"])
        tokenized = await client.tokenize(DATES, TEXTS)
        models = await client.list_models()
        model = await client.get_model(DATES)
    assert "".join(piece.text for piece in pieces) == translated.outputs[0].text
    assert "".join(piece.text for piece in streamed) == generated.outputs[0].text
    with Client(target) as blocking:
        assert blocking.translate(DATES, TEXTS).outputs == translated.outputs
        assert blocking.generate(COUNTING, "7,", max_new_tokens=4).outputs == generated.outputs
        assert blocking.classify(MAJORITY, ["12"]).outputs == classified.outputs
        assert blocking.tokenize(DATES, TEXTS).outputs == tokenized.outputs
        assert blocking.list_models() == models
        assert blocking.get_model(DATES) == model


def test_token_ids_can_be_the_prompt(target: str) -> None:
    with Client(target) as client:
        ids = client.tokenize(COUNTING, "98,").outputs[0].token_ids
        of_ids = client.generate(COUNTING, token_inputs=[ids], max_new_tokens=4)
        of_text = client.generate(COUNTING, "98,", max_new_tokens=4)
    assert of_ids.outputs == of_text.outputs
    assert of_text.outputs[0].text == "99,1"


def test_models(target: str) -> None:
    with Client(target) as client:
        models = {model.name: model for model in client.list_models()}
    assert {DATES, COUNTING, MAJORITY} <= models.keys()
    dates = models[DATES]
    assert dates.state is ModelState.READY
    assert dates.kind is ModelKind.ENCODER_DECODER
    assert "translate" in dates.tasks
    assert dates.parameters > 0
    assert dates.parity is not None
    assert dates.parity.greedy_tokens_equal == dates.parity.greedy_tokens_compared > 0


def test_a_stream_can_be_cancelled(target: str) -> None:
    with Client(target) as client:
        with closing(client.generate_stream(COUNTING, "7,", ignore_eos=True)) as pieces:
            next(pieces)
        with pytest.raises(StopIteration):
            next(pieces)
        assert client.generate(COUNTING, "7,", max_new_tokens=1).outputs


async def test_a_stream_can_be_cancelled_asyncio(target: str) -> None:
    async with AsyncClient(target) as client:
        async with aclosing(client.generate_stream(COUNTING, "7,", ignore_eos=True)) as pieces:
            await anext(pieces)
        with pytest.raises(StopAsyncIteration):
            await anext(pieces)
        assert (await client.generate(COUNTING, "7,", max_new_tokens=1)).outputs


def test_the_servers_error_names_the_field(target: str) -> None:
    with Client(target) as client, pytest.raises(TriuneError) as caught:
        client.generate(COUNTING, "7,", temperature=-1.0)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [row.field for row in caught.value.violations] == ["sampling.temperature"]


def test_health(target: str) -> None:
    assert health.status(target, "", timeout_seconds=10) == "SERVING"
    with pytest.raises(TriuneError) as caught:
        health.status(target, "no.such.Service", timeout_seconds=10)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
