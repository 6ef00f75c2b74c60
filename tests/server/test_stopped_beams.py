"""A beam search ends once all its hypotheses agree on a text with a stop string."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from client.options import GenerationOptions
from client.sync import Client
from client.types import FinishReason
from server.engine.requests.job import Delivery
from tests.faults.serving import metric
from tests.server.test_forking import beam_options, prompts, run_alone
from tests.server.worker_harness import make_job
from tests.serving import ServerProcess, server_process

DECODER, DATES = "tiny-decoder", "dates"


def end_after(length: int) -> Callable[[], Callable[[int], bool]]:
    def start() -> Callable[[int], bool]:
        numbers = count(1)
        return lambda _: next(numbers) == length

    return start


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(prompt=prompts, beams=beam_options, length=st.integers(1, 8), data=st.data())
def test_outputs_are_those_of_the_whole_search_cut(prompt, beams, length, data) -> None:
    num_outputs = data.draw(st.integers(1, beams.size))
    job = replace(
        make_job(prompt, 30), beams=beams, num_outputs=num_outputs, delivery=Delivery.EACH
    )
    whole, cut = run_alone(job), run_alone(replace(job, text_end=end_after(length)))
    texts = [whole.tokens_of(0, output) for output in range(num_outputs)]
    found = [cut.tokens_of(0, output) for output in range(num_outputs)]
    if found != texts:
        assert found == [texts[0][:length]] * num_outputs
        assert len({cut.last_update_of(0, output).score for output in range(num_outputs)}) == 1
    assert len(cut.recorder.runs) <= len(whole.recorder.runs)


@pytest.fixture(scope="module")
def server(tiny_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(tiny_bundles, "--threads", "1", "--max-length", "400") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def num_decode_runs(server: ServerProcess) -> float:
    return metric(server, "triune_run_seconds_count", model=DECODER, phase="decode")


def test_search_does_not_run_on_after_a_stop_string(server: ServerProcess, client: Client) -> None:
    options = GenerationOptions(
        beam_size=3, num_hypotheses=3, ignore_eos=True, max_new_tokens=300, stop_strings=[","]
    )
    client.generate(DECODER, "7,", max_new_tokens=2)
    before = num_decode_runs(server)
    output = client.generate(DECODER, "7,", **options).outputs[0]
    assert num_decode_runs(server) - before < 30
    assert {hypothesis.text for hypothesis in output.hypotheses} == {"8"}
    assert {hypothesis.finish_reason for hypothesis in output.hypotheses} == {
        FinishReason.STOP_STRING
    }
    assert len({hypothesis.score for hypothesis in output.hypotheses}) == 1
    chunks = list(client.generate_stream(DECODER, "7,", **options))
    assert "".join(chunk.text for chunk in chunks if chunk.hypothesis == 0) == "8"


def test_a_stop_string_in_the_target_prefix_does_not_count(client: Client) -> None:
    result = client.translate(
        DATES, "3 March 2021", target_prefix="20", beam_size=3, stop_strings=["0"]
    )
    assert result.outputs[0].text == "2021-"
