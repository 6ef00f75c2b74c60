"""Texts about images through a real server: results, options, batches, memory and errors."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client.aio import AsyncClient
from client.sync import Client
from client.types import AttentionKind, AttentionOptions, Message, Regex
from model.images import decode_image
from model.kernels import Step
from model.transformer import Transformer, from_weights
from server.bench import Bench
from server.errors import InvalidArgumentError, OverloadedError
from server.service.caller import Caller
from server.service.generation_request import GenerateRequest
from server.service.service import Service
from tests.caption_models import CAPTIONER, EOS, START, checkpoint
from tests.image_models import IMAGE
from tests.pictures import black, picture
from tests.server.encoder_calls import error_of, field_of
from tests.server.in_process_service import service_context
from tests.serving import ServerProcess, server_process

ROOT = Path(__file__).parents[2]
MODEL = "captioner"
PICTURES = [picture(seed, size=(20 + 7 * seed, 50 - 5 * seed)) for seed in range(6)]
NUM_TOKENS = 12
END = ' "'  # the text of the token EOS


@pytest.fixture(scope="module")
def server(caption_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(caption_bundles, "--threads", "1", "--slots", "8") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


@cache
def module() -> Transformer:
    given = checkpoint()
    return from_weights(given.config, given.weights)


def greedy(image: bytes, prefix: tuple[int, ...] = ()) -> list[int]:
    """The eager module's greedy tokens, ``prefix`` included."""
    pixels = np.stack([decode_image(image, IMAGE)])
    states = module().encode_image_source(torch.from_numpy(pixels))
    lengths, tokens = torch.tensor([IMAGE.num_tokens], dtype=torch.int32), list(prefix)
    while len(tokens) - len(prefix) < NUM_TOKENS and EOS not in tokens:
        ids = torch.tensor([[START, *tokens]])
        step = Step.whole(torch.tensor([ids.shape[1]]), lengths)
        logits = module().logits(module().decode(ids, step, states).hidden)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens


def test_a_model_tells_what_it_reads(client: Client) -> None:
    model = client.get_model(MODEL)
    assert (model.kind, model.tasks) == ("encoder_decoder", ("generate",))
    assert model.image is not None
    assert (model.image.height, model.image.width, model.image.num_tokens) == (24, 16, 7)
    assert (model.max_length, model.max_source_length) == (96, 0)
    assert model.vocabulary_size == CAPTIONER.vocabulary_size


def test_texts_are_those_of_the_eager_module(client: Client) -> None:
    options: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "token_ids": True}
    result = client.generate(MODEL, images=PICTURES, **options)
    expected = [greedy(image) for image in PICTURES]
    assert len({tuple(tokens) for tokens in expected}) == len(PICTURES)
    assert [list(output.token_ids) for output in result.outputs] == expected
    for output, tokens in zip(result.outputs, expected, strict=True):
        assert output.usage.input_tokens == IMAGE.num_tokens
        assert output.usage.output_tokens == len(tokens)
    pieces = list(client.generate_stream(MODEL, images=PICTURES[0], **options))
    assert "".join(piece.text for piece in pieces) == result.outputs[0].text
    assert [id_ for piece in pieces for id_ in piece.token_ids] == expected[0]


async def test_the_client_for_asyncio_sends_images_too(server: ServerProcess) -> None:
    async with AsyncClient(server.target, timeout_seconds=60) as client:
        options: dict[str, Any] = {"max_new_tokens": NUM_TOKENS}
        whole = await client.generate(MODEL, images=PICTURES[:2], **options)
        pieces = [
            piece async for piece in client.generate_stream(MODEL, images=PICTURES[1], **options)
        ]
    assert "".join(piece.text for piece in pieces) == whole.outputs[1].text


def test_the_command_line_sends_files(
    client: Client, server: ServerProcess, tmp_path: Path
) -> None:
    flags = ["--model", MODEL, "--max-new-tokens", str(NUM_TOKENS)]
    for index, image in enumerate(PICTURES[:2]):
        (tmp_path / f"{index}.png").write_bytes(image)
        flags += ["--image", str(tmp_path / f"{index}.png")]
    expected = client.generate(MODEL, images=PICTURES[:2], max_new_tokens=NUM_TOKENS)
    texts = [output.text for output in expected.outputs]
    command = [sys.executable, "-m", "client", "--target", server.target, "generate", *flags]
    for more in ([], ["--json"]):
        ran = subprocess.run(
            [*command, *more], capture_output=True, text=True, check=True, cwd=ROOT
        )
        if more:
            assert json.loads(ran.stdout)["outputs"] == texts
        else:
            assert all(text in ran.stdout for text in texts)


def test_a_target_prefix_is_a_prompt_of_the_decoder(client: Client) -> None:
    result = client.generate(
        MODEL,
        images=PICTURES[:2],
        target_prefix=["AB", "C"],
        max_new_tokens=NUM_TOKENS,
        token_ids=True,
    )
    expected = [greedy(PICTURES[0], (32, 33)), greedy(PICTURES[1], (34,))]
    assert [list(output.token_ids) for output in result.outputs] == expected


def test_results_do_not_depend_on_other_requests(client: Client) -> None:
    def caption(index: int) -> tuple[int, ...]:
        options: dict[str, Any] = {"max_new_tokens": NUM_TOKENS, "token_ids": True}
        return client.generate(MODEL, images=PICTURES[index], **options).outputs[0].token_ids

    alone = [caption(index) for index in range(len(PICTURES))]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(caption, [*range(len(PICTURES))] * 8))
    assert together == alone * 8


def test_search_sampling_and_grammars(client: Client) -> None:
    def texts(**options: Any) -> list[str]:
        options = {"max_new_tokens": 6, **options}
        (output,) = client.generate(MODEL, images=PICTURES[0], **options).outputs
        return [hypothesis.text for hypothesis in output.hypotheses] or [output.text]

    beams = texts(beam_size=4, num_hypotheses=4)
    assert len(set(beams)) == 4
    samples = texts(temperature=1.0, seed=5, num_hypotheses=3)
    assert samples == texts(temperature=1.0, seed=5, num_hypotheses=3)
    assert len(set(samples)) > 1
    alternatives = texts(alternatives=True, num_hypotheses=3)
    assert len({text[0] for text in alternatives}) == 3
    (written,) = texts(grammar=Regex("[A-C ]+"))
    assert written.strip()
    assert set(written.removesuffix(END)) <= set("ABC ")


def test_log_probabilities_and_attention(client: Client) -> None:
    (output,) = client.generate(
        MODEL,
        images=PICTURES[0],
        max_new_tokens=5,
        logprobs=True,
        top_logprobs=2,
        attention=AttentionOptions(),
    ).outputs
    assert all(token.logprob == token.top[0].logprob for token in output.logprobs)
    assert output.attention is not None
    assert output.attention.source_tokens == tuple(map(str, range(IMAGE.num_tokens)))
    assert len(output.attention.matrices) == 2 * 4
    for matrix in output.attention.matrices:
        weights = np.reshape(matrix.weights, (-1, IMAGE.num_tokens))
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-4)
        assert len(weights) == len(output.attention.target_tokens)


ONE = PICTURES[0]
REFUSED = {
    "text": ([b"not an image"], "images[0]", "is not one of PNG, JPEG"),
    "empty": ([ONE, b""], "images[1]", "is not one of"),
    "truncated": ([ONE, ONE, ONE[: len(ONE) // 2]], "images[2]", "is damaged"),
    "large": ([ONE, black(6_000)], "images[1]", "has 36000000 pixels"),
    "many pixels": ([black(5_000)] * 6, "images", "have 150000000 pixels"),
    "many images": ([ONE] * 257, "images", "257 given, at most 256"),
}


@pytest.mark.parametrize(("images", "field", "reason"), REFUSED.values(), ids=REFUSED)
def test_bad_images_are_refused_by_name(
    client: Client, images: list[bytes], field: str, reason: str
) -> None:
    error = error_of(lambda: client.generate(MODEL, images=images))
    assert field_of(error) == field
    assert reason in str(error)
    assert client.generate(MODEL, images=ONE, max_new_tokens=1).outputs  # the server goes on


def test_what_does_not_apply_is_refused_by_name(client: Client) -> None:
    alignments = AttentionOptions(alignments=True)
    of_encoder = AttentionOptions(kind=AttentionKind.ENCODER)
    cases: dict[str, list[Callable[[], object]]] = {
        "inputs": [
            lambda: client.generate(MODEL, "A"),
            lambda: client.generate(MODEL),
            lambda: client.tokenize(MODEL, ["A"]),
        ],
        "token_inputs": [lambda: client.generate(MODEL, token_inputs=[[5]])],
        "messages": [lambda: client.generate(MODEL, messages=[Message("user", "A")])],
        "images": [
            lambda: client.generate(MODEL, "A", images=ONE),
            lambda: client.generate(MODEL, images=ONE, messages=[Message("user", "A")]),
        ],
        "messages[0].role": [lambda: client.generate(MODEL, messages=[Message("nobody", [ONE])])],
        "messages[0].parts[1].text": [
            lambda: client.generate(MODEL, messages=[Message("user", [ONE, "A"])])
        ],
        "chat": [lambda: client.generate(MODEL, images=ONE, template_variables='{"a": 1}')],
        "decoding.encoder_no_repeat_ngram_size": [
            lambda: client.generate(MODEL, images=ONE, encoder_no_repeat_ngram_size=2)
        ],
        "response.attention.alignments": [
            lambda: client.generate(MODEL, images=ONE, attention=alignments)
        ],
        "response.attention": [lambda: client.generate(MODEL, images=ONE, attention=of_encoder)],
        "response.echo": [lambda: client.generate(MODEL, images=ONE, echo=True)],
        "decoding.target_prefix": [
            lambda: client.generate(MODEL, images=ONE, target_prefix=["A", "B"])
        ],
        "model": [
            lambda: client.score(MODEL, [("A", "B")]),
            lambda: client.attend(MODEL, ["A"]),
            lambda: client.translate(MODEL, "A"),
            lambda: client.classify(MODEL, ONE),
        ],
    }
    for field, calls in cases.items():
        for call in calls:
            error = error_of(call)
            assert field_of(error) == field, error


async def test_decoded_images_are_counted_until_the_call_ends(caption_bundles: Path) -> None:
    request = GenerateRequest(model=MODEL, images=(ONE, ONE))
    damaged = GenerateRequest(model=MODEL, images=(ONE, ONE[: len(ONE) // 2]))
    caller = Caller("", None)
    async with service_context(caption_bundles, num_threads=1, num_slots=2) as context:
        service, memory = Service(context), context.decoded_memory
        for is_whole in (True, False):
            chunks = await service.generate_stream(request, caller)
            assert memory.num_bytes == 2 * IMAGE.num_bytes
            async with contextlib.aclosing(chunks):
                async for _ in chunks:
                    assert memory.num_bytes == 2 * IMAGE.num_bytes
                    if not is_whole:
                        break
            assert memory.num_bytes == 0
        unread = await service.generate_stream(request, caller)
        del unread
        assert memory.num_bytes == 0
        with pytest.raises(InvalidArgumentError, match="is damaged"):
            await service.generate(damaged, caller)
        assert memory.num_bytes == 0
        await service.generate(request, caller)
        assert memory.num_bytes == 0


async def test_images_beyond_the_memory_are_refused(caption_bundles: Path) -> None:
    request = GenerateRequest(model=MODEL, images=(ONE,))
    async with service_context(caption_bundles, num_threads=1, num_slots=2) as context:
        with context.decoded_memory.reserve((1 << 29) - 1, "", "images"):
            for call in (Service(context).generate, Service(context).generate_stream):
                with pytest.raises(OverloadedError, match="too many images"):
                    await call(request, Caller("", None))


async def test_the_bench_of_the_engine_takes_texts_only(caption_bundles: Path) -> None:
    message = {"model": str(caption_bundles / MODEL / "1"), "threads": 1}
    with pytest.raises(ValueError, match="takes images or speech, not texts"):
        await Bench().load(message)
