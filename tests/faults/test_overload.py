"""Overload: requests over capacity are rejected immediately and cost no model run."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.errors import TriuneError
from client.sync import Client
from client.types import FinishReason
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from tests.faults.record import percentile, record
from tests.faults.serving import (
    DECODER,
    LONG,
    MODELS,
    faulty_server,
    for_model,
    metric,
    running_sequences,
    wait_until,
)
from tests.serving import ServerProcess

pytestmark = pytest.mark.heavy

SLOTS, QUEUE, RUN_SECONDS = 4, 4, 0.02
NUM_CANCELS = 200


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, model: str) -> Iterator[ServerProcess]:
    options = ("--slots", str(SLOTS), "--max-queue", str(QUEUE), "--max-queue-tokens", "4000")
    folder: Path = request.getfixturevalue(MODELS[model])
    with faulty_server(folder, *options, run_seconds=RUN_SECONDS) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=120) as client:
        yield client


def until_idle(server: ServerProcess, client: Client, model: str) -> None:
    """Waits until a request that needs all slots completes and all slots are free again."""
    client.generate(model, "1,", num_hypotheses=SLOTS, temperature=1.0, max_new_tokens=2)
    wait_until(lambda: metric(server, "triune_sequences_running", model=model) == 0)


def test_full_queue_rejects_immediately(client: Client, model: str) -> None:
    """Rejects exactly the requests that exceed the queue."""
    num_requests = 30
    with running_sequences(client, SLOTS, model), ThreadPoolExecutor(num_requests) as pool:

        def send_request(number: int) -> tuple[TriuneError | None, float]:
            started = time.monotonic()
            try:
                client.generate(model, f"{number},", max_new_tokens=2)
            except TriuneError as error:
                return error, time.monotonic() - started
            return None, 0.0

        results = list(pool.map(send_request, range(num_requests)))
    rejections = [(error, seconds) for error, seconds in results if error is not None]
    assert len(rejections) == num_requests - QUEUE
    for error, _ in rejections:
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "holds no more requests" in error.message
        assert error.retry_delay_seconds is not None
    record(
        1,
        for_model("the queue is full", model),
        "`RESOURCE_EXHAUSTED` at once, with `RetryInfo` and `grpc-retry-pushback-ms`",
        requests=num_requests,
        places=QUEUE,
        refused=len(rejections),
        p99_to_refuse_milliseconds=1000 * percentile([seconds for _, seconds in rejections], 0.99),
    )


def test_rejection_names_the_limit_and_retry_delay(
    server: ServerProcess, client: Client, model: str
) -> None:
    request = pb.GenerateRequest(model=model, inputs=["1,"] * 2 * QUEUE)
    with running_sequences(client, SLOTS, model), grpc.insecure_channel(server.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(request, timeout=60)
    metadata: Any = caught.value.trailing_metadata()
    trailers = dict(metadata)
    assert int(trailers["grpc-retry-pushback-ms"]) >= 100
    assert b"queue_rows" in trailers["grpc-status-details-bin"]


def test_too_large_request_error_names_the_field(client: Client, model: str) -> None:
    cases: list[tuple[str, dict]] = [
        ("inputs", {"inputs": ["1,"] * (SLOTS + QUEUE + 1)}),
        ("inputs[0]", {"inputs": "1" * 300}),
        ("decoding.beam_size", {"inputs": "1,", "beam_size": SLOTS + 1}),
    ]
    for field, arguments in cases:
        with pytest.raises(TriuneError) as caught:
            client.generate(model, **arguments)
        assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.violations[0].field == field


def test_queued_requests_return_the_same_output(client: Client, model: str) -> None:
    prompts = [f"{number}," for number in range(10, 10 + SLOTS + QUEUE)]
    alone = [client.generate(model, prompt).outputs[0].text for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(
            pool.map(lambda prompt: client.generate(model, prompt).outputs[0].text, prompts)
        )
    assert together == alone
    record(
        8,
        for_model("the cache is full", model),
        "requests wait, with identical output; one that can never fit is rejected by its field",
        slots=SLOTS,
        sequences=len(prompts),
        changed=sum(a != b for a, b in zip(alone, together, strict=True)),
    )


def test_requests_that_expire_in_the_queue_are_never_run(
    server: ServerProcess, client: Client, model: str
) -> None:
    # An encoder-decoder encodes its source first; its prompt of one token counts as decoding.
    phase = "prefill" if model == DECODER else "encode"

    def runs() -> float:
        return metric(server, "triune_run_rows_sum", model=model, phase=phase)

    until_idle(server, client, model)
    before = runs()
    with (
        running_sequences(client, SLOTS, model),
        Client(server.target, timeout_seconds=0.3) as impatient_client,
        ThreadPoolExecutor(QUEUE) as pool,
    ):

        def send_request(number: int) -> grpc.StatusCode:
            with pytest.raises(TriuneError) as caught:
                impatient_client.generate(model, f"{number},", max_new_tokens=2)
            return caught.value.code

        codes = set(pool.map(send_request, range(QUEUE)))
        wait_until(lambda: metric(server, "triune_sequences_waiting", model=model) == 0)
    # Admission may already reject a request whose deadline is before the estimated wait.
    assert codes <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    num_runs = runs() - before - SLOTS
    assert num_runs == 0
    record(
        3,
        for_model("a deadline passes in the queue", model),
        "the request is dropped before any computation",
        expired=QUEUE,
        model_runs_for_them=int(num_runs),
    )


def test_timeout_while_decoding_returns_partial_text(
    server: ServerProcess, client: Client, model: str
) -> None:
    num_texts = 6
    whole = client.generate(model, "1,", max_new_tokens=200, ignore_eos=True).outputs[0].text
    for _ in range(num_texts):
        cut = client.generate(
            model, "1,", max_new_tokens=200, ignore_eos=True, max_seconds=0.2
        ).outputs[0]
        assert cut.finish_reason == FinishReason.DEADLINE
        assert whole.startswith(cut.text)
        assert len(cut.text) < len(whole)
    until_idle(server, client, model)
    record(
        4,
        for_model("a deadline passes while decoding", model),
        "the partial text with `FINISH_REASON_DEADLINE` if requested; the slot is freed",
        texts=num_texts,
        slots_leaked=int(metric(server, "triune_sequences_running", model=model)),
    )


def test_generation_stops_shortly_before_the_deadline(tiny_bundles: Path) -> None:
    """240 tokens take at least 12 s. Deadline: 6 s, minus 0.5 s for the response."""
    with (
        faulty_server(tiny_bundles, run_seconds=0.05) as slow,
        Client(slow.target, timeout_seconds=6.0) as impatient_client,
    ):
        cut = impatient_client.generate(
            DECODER,
            "1,",
            max_new_tokens=240,
            ignore_eos=True,
            token_ids=True,
            stop_before_deadline=True,
        ).outputs[0]
    assert cut.finish_reason == FinishReason.DEADLINE
    assert 0 < len(cut.token_ids) < 240


def test_cancelling_at_any_time_leaks_no_slot(
    server: ServerProcess, client: Client, model: str
) -> None:
    """Cancels streams while queued, during prefill and during decode."""
    rng = random.Random(0)
    expected = client.generate(model, "1,", max_new_tokens=5).outputs[0].text
    with grpc.insecure_channel(server.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        def cancel_stream(number: int) -> None:
            prompt = "1," * rng.randrange(1, 100)
            request = pb.GenerateStreamRequest(
                model=model,
                inputs=[prompt] * rng.randrange(1, 3),
                stopping=pb.StoppingOptions(max_new_tokens=40, ignore_eos=True),
                response=pb.ResponseOptions(token_ids=True),
            )
            stream = stub.GenerateStream(request, timeout=60)
            with closing_call(stream):
                for _ in range(rng.choice((0, 0, 1, 2, 5))):
                    try:
                        next(stream)
                    except grpc.RpcError:
                        return
            del number

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(cancel_stream, range(NUM_CANCELS)))
    wait_until(lambda: metric(server, "triune_sequences_waiting", model=model) == 0)
    until_idle(server, client, model)
    assert client.generate(model, "1,", max_new_tokens=5).outputs[0].text == expected
    record(
        5,
        for_model("clients cancel while queued, in prefill, decoding or streaming", model),
        "the slot is freed within one step",
        cancels=NUM_CANCELS,
        slots_leaked=int(metric(server, "triune_sequences_running", model=model)),
    )


def closing_call(call: grpc.Call) -> closing:
    """Cancels ``call`` at the end of the block."""

    class _Closes:
        def close(self) -> None:
            call.cancel()

    return closing(_Closes())


def test_rate_limits_each_client(tiny_bundles: Path) -> None:
    options = ("--client-tokens-per-second", "1", "--client-burst-tokens", "50")
    with (
        faulty_server(tiny_bundles, *options) as server,
        Client(server.target, timeout_seconds=60) as client,
    ):
        assert client.generate(DECODER, "1,", max_new_tokens=40).outputs
        with pytest.raises(
            TriuneError, match="a client may ask for 1 tokens per second"
        ) as overloaded:
            client.generate(DECODER, "1,", max_new_tokens=40)
        assert overloaded.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert overloaded.value.retry_delay_seconds is not None
        with pytest.raises(TriuneError) as too_large:
            client.generate(DECODER, "1,", **LONG)
        assert too_large.value.violations[0].field == "stopping.max_new_tokens"
