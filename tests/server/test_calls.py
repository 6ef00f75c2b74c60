"""End-to-end calls to a server process with real, tiny trained models."""

import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from client.errors import TriuneError
from client.sync import Client
from client.types import FinishReason, GenerationOptions, ModelState, SentenceSplit
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from tests.serving import ServerProcess, server_process

DECODER, DATES, CLASSIFIER = "tiny-decoder", "dates", "tiny-classifier"
DATE = "3 March 2021"


@pytest.fixture(scope="module")
def server(tiny_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(tiny_bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def error_of(call, *args, **options) -> TriuneError:
    with pytest.raises(TriuneError) as caught:
        call(*args, **options)
    return caught.value


def test_all_methods_respond(client: Client) -> None:
    translated = client.translate(DATES, [DATE, "March 3, 2021"])
    assert [output.text for output in translated.outputs] == ["2021-03-03"] * 2
    assert translated.outputs[0].finish_reason == FinishReason.STOP
    assert translated.usage.output_tokens == 2 * (len("2021-03-03") + 1)
    generated = client.generate(DECODER, "1", max_new_tokens=5)
    assert generated.usage.output_tokens <= 5
    assert client.classify(CLASSIFIER, ["12"]).outputs[0].labels[0].score > 0.5


def test_all_responses_report_usage_and_timing(client: Client) -> None:
    for result in (
        client.translate(DATES, DATE),
        client.generate(DECODER, "1", max_new_tokens=3),
        client.classify(CLASSIFIER, "12"),
    ):
        assert result.usage.input_tokens > 0
        timing = result.timing
        phases = timing.queue_seconds + timing.prefill_seconds + timing.decode_seconds
        assert 0 < phases <= timing.total_seconds


def test_joined_stream_equals_the_unary_text(client: Client) -> None:
    chunks = list(client.translate_stream(DATES, [DATE, "1 May 1999"], token_ids=True))
    unary = client.translate(DATES, [DATE, "1 May 1999"], token_ids=True)
    for index, output in enumerate(unary.outputs):
        output_chunks = [chunk for chunk in chunks if chunk.index == index]
        assert "".join(chunk.text for chunk in output_chunks) == output.text
        assert tuple(id_ for chunk in output_chunks for id_ in chunk.token_ids) == output.token_ids
        assert [chunk.finish_reason for chunk in output_chunks[:-1]] == [None] * (
            len(output_chunks) - 1
        )
        assert output_chunks[-1].finish_reason == output.finish_reason
        assert output_chunks[-1].usage == output.usage
        assert output_chunks[-1].timing is not None


def test_stops_at_strings_and_limits(client: Client) -> None:
    cut = client.translate(DATES, DATE, stop_strings=["-0"]).outputs[0]
    assert (cut.text, cut.finish_reason) == ("2021", FinishReason.STOP_STRING)
    cut = client.translate(DATES, DATE, max_new_tokens=4).outputs[0]
    assert (cut.text, cut.finish_reason) == ("2021", FinishReason.LENGTH)
    continued = client.translate(DATES, DATE, max_new_tokens=30, ignore_eos=True).outputs[0]
    assert continued.usage.output_tokens == 30
    assert continued.finish_reason == FinishReason.LENGTH


def num_decoded_tokens(server: ServerProcess, model: str) -> float:
    with urllib.request.urlopen(server.metrics_url, timeout=60) as response:
        text = response.read().decode()
    name = f'triune_run_rows_sum{{model="{model}",phase="decode"}}'
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_each_input_stops_at_its_stop_string(client: Client, server: ServerProcess) -> None:
    """While earlier inputs go on, later ones are not decoded after their stop string."""
    client.generate(DECODER, "1", max_new_tokens=2)
    before = num_decoded_tokens(server, DECODER)
    goes_on, *stopped = client.generate(
        DECODER, ["1", *["7,"] * 3], stop_strings=["8,"], max_new_tokens=250, ignore_eos=True
    ).outputs
    assert goes_on.finish_reason == FinishReason.LENGTH
    assert [output.finish_reason for output in stopped] == [FinishReason.STOP_STRING] * 3
    assert num_decoded_tokens(server, DECODER) - before < 2 * 250


def test_seed_reproduces_a_sample(client: Client) -> None:
    def sample(seed: int) -> str:
        result = client.generate(
            DECODER, "1", temperature=2.0, max_new_tokens=20, ignore_eos=True, seed=seed
        )
        return result.outputs[0].text

    assert sample(1) == sample(1)
    assert sample(2) == sample(2)
    assert sample(1) != sample(2)


def test_token_ids_give_the_same_result_as_text(client: Client) -> None:
    tokens = client.tokenize(DECODER, "12").outputs[0].token_ids
    by_text = client.generate(DECODER, "12", max_new_tokens=6)
    by_tokens = client.generate(DECODER, token_inputs=[tokens], max_new_tokens=6)
    assert by_text.outputs[0].text == by_tokens.outputs[0].text


def test_unknown_model_is_not_found(client: Client) -> None:
    for call in (client.generate, client.translate, client.embed, client.tokenize):
        error = error_of(call, "nobody", "x")
        assert error.code == grpc.StatusCode.NOT_FOUND
        assert DECODER in error.message
    assert error_of(client.get_model, "nobody").code == grpc.StatusCode.NOT_FOUND
    assert error_of(client.translate, DATES, DATE, version="9").code == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "model", "inputs", "options", "field"),
    [
        ("generate", DATES, ["x"], {}, "model"),
        ("translate", DECODER, ["x"], {}, "model"),
        ("embed", DECODER, ["x"], {}, "model"),
        ("classify", DATES, ["x"], {}, "model"),
        ("generate", DECODER, [], {}, "inputs"),
        ("translate", DATES, [], {}, "inputs"),
        ("translate", DATES, [DATE, " "], {}, "inputs[1]"),
        ("classify", CLASSIFIER, ["12", ""], {}, "inputs[1]"),
        (
            "translate",
            DATES,
            [DATE, "1" * 5000],
            {"sentence_split": SentenceSplit.OFF},
            "inputs[1]",
        ),
        ("generate", DECODER, ["1" * 5000], {}, "inputs[0]"),
        ("classify", CLASSIFIER, ["1" * 5000], {}, "inputs[0]"),
        ("generate", DECODER, ["1" * 2_000_000], {}, "inputs[0]"),
        ("generate", DECODER, ["1"], {"temperature": -1.0}, "sampling.temperature"),
        ("generate", DECODER, ["1"], {"temperature": float("nan")}, "sampling.temperature"),
        ("generate", DECODER, ["1"], {"temperature": float("inf")}, "sampling.temperature"),
        ("generate", DECODER, ["1"], {"top_p": 0.0}, "sampling.top_p"),
        ("generate", DECODER, ["1"], {"top_p": float("nan")}, "sampling.top_p"),
        ("generate", DECODER, ["1"], {"top_k": -1}, "sampling.top_k"),
        ("translate", DATES, [DATE], {"max_new_tokens": 0}, "stopping.max_new_tokens"),
        ("translate", DATES, [DATE], {"max_new_tokens": -3}, "stopping.max_new_tokens"),
        ("translate", DATES, [DATE], {"stop_strings": ["x", ""]}, "stopping.stop_strings[1]"),
    ],
)
def test_invalid_input_errors_name_the_field(client, method, model, inputs, options, field) -> None:
    error = error_of(getattr(client, method), model, inputs, **options)
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in error.violations] == [field]
    assert error.reason == "INVALID_ARGUMENT"


def test_invalid_prompt_errors_name_the_field(client: Client, server: ServerProcess) -> None:
    error = error_of(client.generate, DECODER, token_inputs=[[1, 10_000_000]])
    assert error.violations[0].field == "token_inputs[0].ids[1]"
    error = error_of(client.generate, DECODER, token_inputs=[[]])
    assert error.violations[0].field == "token_inputs[0]"
    with grpc.insecure_channel(server.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = pb.GenerateRequest(
            model=DECODER, inputs=["1"], messages=[pb.ChatMessage(role="user", content="x")]
        )
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(request, timeout=60)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        del request.inputs[:]
        with pytest.raises(grpc.RpcError) as caught:
            stub.Generate(request, timeout=60)
        assert "messages: " in str(caught.value.details())


def test_invalid_request_does_not_affect_others(client: Client) -> None:
    stream = client.translate_stream(DATES, DATE)
    first = next(stream)
    error_of(client.translate, DATES, "")
    assert first.text + "".join(chunk.text for chunk in stream) == "2021-03-03"


def test_deadline_ends_the_call(server: ServerProcess) -> None:
    with Client(
        server.target, timeout_seconds=0.002
    ) as impatient_client:  # shorter than 400 steps take
        error = error_of(
            impatient_client.generate, DECODER, "1" * 20, max_new_tokens=400, ignore_eos=True
        )
    assert error.code == grpc.StatusCode.DEADLINE_EXCEEDED


def test_serves_health_and_reflection(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.target) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        services = {
            "triune.v1.InferenceService",
            "triune.v1.ModelService",
            "inference.GRPCInferenceService",
        }
        for service in ("", *services):
            response = check(health_pb2.HealthCheckRequest(service=service), timeout=60)
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (response,) = reflect(iter([request]), timeout=60)
        names = {service.name for service in response.list_services_response.service}
        assert services <= names


def test_exports_metrics(client: Client, server: ServerProcess) -> None:
    client.translate(DATES, DATE)
    error_of(client.translate, DATES, "")
    with urllib.request.urlopen(server.metrics_url, timeout=60) as response:
        text = response.read().decode()
    assert f'triune_requests_total{{method="Translate",model="{DATES}",status="OK"}}' in text
    assert f'method="Translate",model="{DATES}",status="INVALID_ARGUMENT"' in text
    for name in ("queue", "prefill", "decode", "request", "first_token", "inter_token"):
        assert f'triune_{name}_seconds_bucket{{le="0.0005"' in text
        assert f'triune_{name}_seconds_bucket{{le="60.0"' in text
    for name in ("sequences_running", "sequences_waiting", "slots", "cache_tokens"):
        assert f"triune_{name}{{" in text
    assert f'triune_tokens_total{{direction="out",model="{DATES}"}}' in text
    assert 'triune_run_rows_bucket{le="1.0",model="dates",phase="decode"}' in text


def test_lists_model_metadata(client: Client) -> None:
    models = {model.name: model for model in client.list_models()}
    assert set(models) == {DECODER, DATES, CLASSIFIER}
    dates = client.get_model(DATES)
    assert dates == models[DATES]
    assert dates.tasks == ("translate",)
    assert dates.state == ModelState.READY
    assert dates.parity is not None
    assert dates.parity.max_absolute_error <= 1e-4
    assert models[CLASSIFIER].labels


@pytest.fixture
def one_slot(tiny_bundles: Path) -> Iterator[ServerProcess]:
    options = ("--threads", "1", "--slots", "1", "--max-queue", "1")
    with server_process(tiny_bundles, *options) as running:
        yield running


def test_full_queue_returns_a_retry_delay(one_slot: ServerProcess) -> None:
    with Client(one_slot.target, timeout_seconds=120) as client:
        long: GenerationOptions = {"max_new_tokens": 400, "ignore_eos": True, "token_ids": True}
        while True:  # again if the stream ends before the other request arrives
            stream = client.generate_stream(DECODER, "1", **long)
            next(stream)
            try:
                client.generate(DECODER, ["1", "1"], max_new_tokens=1)
            except TriuneError as caught:
                error = caught
                break
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.retry_delay_seconds is not None
        assert error.retry_delay_seconds > 0
        assert len(list(stream)) > 0
        assert client.generate(DECODER, "1", max_new_tokens=3).outputs


def test_cancelling_a_stream_frees_its_slot(one_slot: ServerProcess) -> None:
    """Cancels 40 streams early, one after the other, on a server with one slot."""
    with Client(one_slot.target, timeout_seconds=120) as client:
        expected = client.generate(DECODER, "1", max_new_tokens=5).outputs[0].text
        for _ in range(40):
            stream = client.generate_stream(
                DECODER, "1", max_new_tokens=400, ignore_eos=True, token_ids=True
            )
            next(stream)
            stream.close()
            # Queued until the slot is free.
            again = client.generate(DECODER, "1", max_new_tokens=5)
            assert again.outputs[0].text == expected


def test_sigterm_drains_accepted_requests(tiny_bundles: Path) -> None:
    with server_process(tiny_bundles, "--threads", "1") as running:
        with Client(running.target, timeout_seconds=120) as client:
            stream = client.generate_stream(
                DECODER, "1", max_new_tokens=200, ignore_eos=True, token_ids=True
            )
            chunks = [next(stream)]
            running.process.send_signal(signal.SIGTERM)
            chunks += list(stream)
        assert sum(len(chunk.token_ids) for chunk in chunks) == 200
        assert chunks[-1].finish_reason == FinishReason.LENGTH
        assert running.process.wait(timeout=60) == 0
