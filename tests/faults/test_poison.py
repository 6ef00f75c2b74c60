"""Poisoned requests fail without affecting the others in their batch."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.errors import TriuneError
from client.sync import Client
from tests.faults.faulty_server import DIES, INFINITE, NAN, RAISES, token_of
from tests.faults.record import record
from tests.faults.serving import MODELS, faulty_server, for_model

pytestmark = pytest.mark.heavy

NUM_ROUNDS = 4


@pytest.mark.parametrize("model", MODELS)
def test_failing_requests_do_not_affect_others(request: pytest.FixtureRequest, model: str) -> None:
    """Greedy, sampled and beam search requests before, among and after failing requests."""
    good = [f"{number}," for number in range(20, 30)]
    bundles: Path = request.getfixturevalue(MODELS[model])
    bad = [f"{letter}1," for letter in (NAN, INFINITE, RAISES)]
    with (
        faulty_server(bundles, "--slots", "16", run_seconds=0.002) as server,
        Client(server.target, timeout_seconds=120) as client,
    ):

        def send_request(prompt: str) -> list[str]:
            options: list[dict[str, Any]] = [
                {},
                {"temperature": 1.0, "top_k": 3, "seed": 1},
                {"beam_size": 2},
            ]
            kind = options[int(prompt[:2]) % 3] if prompt in good else {}
            output = client.generate(
                model, prompt, max_new_tokens=12, logprobs=not kind, **kind
            ).outputs[0]
            return [output.text, *(f"{row.logprob:.4f}" for row in output.logprobs)]

        def status_of(prompt: str) -> grpc.StatusCode:
            try:
                send_request(prompt)
            except TriuneError as error:
                return error.code
            return grpc.StatusCode.OK

        for letter in (NAN, INFINITE, RAISES, DIES):
            (output,) = client.tokenize(model, letter, without_special_tokens=True).outputs
            assert output.token_ids == (token_of(letter),)
        alone = {prompt: send_request(prompt) for prompt in good}
        num_changed, codes = 0, []
        with ThreadPoolExecutor(len(good) + len(bad)) as pool:
            for _ in range(NUM_ROUNDS):
                failing = [pool.submit(status_of, prompt) for prompt in bad]
                outputs = list(pool.map(send_request, good))
                num_changed += sum(
                    answer != alone[prompt] for prompt, answer in zip(good, outputs, strict=True)
                )
                codes += [future.result() for future in failing]
        after = [send_request(prompt) for prompt in good]
    assert num_changed == 0
    assert after == list(alone.values()), "slots of failed sequences are clean"
    assert set(codes) == {grpc.StatusCode.INTERNAL}
    record(
        6,
        for_model("one request of a batch fails: NaN, infinity, an exception", model),
        "only that request fails, with `INTERNAL`; its slot is zeroed before reuse",
        poisoned=len(codes),
        mates=NUM_ROUNDS * len(good),
        mates_harmed=num_changed,
    )
