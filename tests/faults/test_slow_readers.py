"""Clients that request large streams and do not read them: by gRPC and by HTTP."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from client.sync import Client
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from tests.faults.http1 import open_completion
from tests.faults.record import percentile, record
from tests.faults.serving import DECODER, faulty_server, metric, wait_until
from tests.serving import ServerProcess

pytestmark = pytest.mark.heavy

# Keeps the HTTP/2 flow-control window at its initial 64 KiB.
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1))
NUM_SLOW = 20
NUM_ROUNDS = 3
# The first round takes what a stream can hold; a later one uses that memory again.
MAX_FIRST_BYTES_PER_STREAM = 1_500_000
MAX_LATER_BYTES_PER_STREAM = 150_000
# 98 top logprobs per token: about 1 MB per stream.
HEAVY = pb.GenerateStreamRequest(
    model=DECODER,
    inputs=["1,"],
    stopping=pb.StoppingOptions(max_new_tokens=240, ignore_eos=True),
    response=pb.ResponseOptions(logprobs=True, top_logprobs=98),
)
OPTIONS = ("--slots", "8", "--max-queue", "100", "--stall-seconds", "1")


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


class Growth:
    """The resident memory of a server: how much each round of slow readers adds at most."""

    def __init__(self, server: ServerProcess) -> None:
        self._pid = server.process.pid
        self._highest = resident_bytes(self._pid)
        self.rounds: list[int] = []

    def measure(self, has_ended: Callable[[], bool]) -> None:
        """Waits for the end of a round. Its growth is that of the highest memory so far."""
        before = self._highest

        def ended() -> bool:
            self._highest = max(self._highest, resident_bytes(self._pid))
            return has_ended()

        wait_until(ended)
        self.rounds.append(self._highest - before)

    def check(self) -> dict[str, float]:
        """The figures of the table; fails if memory is not bounded, or grows in later rounds."""
        first, *later = self.rounds
        assert first < NUM_SLOW * MAX_FIRST_BYTES_PER_STREAM
        assert later[-1] < NUM_SLOW * MAX_LATER_BYTES_PER_STREAM
        names = ("second", "third")
        return {
            "kB_per_stream_in_the_first_round": first / NUM_SLOW / 1e3,
            **{
                f"growth_in_the_{name}_MB": grown / 1e6
                for name, grown in zip(names, later, strict=True)
            },
        }


def num_ended(server: ServerProcess, method: str) -> float:
    labels = {"method": method, "status": "RESOURCE_EXHAUSTED"}
    return metric(server, "triune_requests_total", **labels)


def test_ends_unread_streams_without_affecting_others(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, *OPTIONS) as server,
        Client(server.target, timeout_seconds=120) as good,
    ):
        alone = good.generate(DECODER, "7,", max_new_tokens=8).outputs[0].text
        latencies: list[float] = []

        def send_request() -> None:
            started = time.monotonic()
            assert good.generate(DECODER, "7,", max_new_tokens=8).outputs[0].text == alone
            latencies.append(time.monotonic() - started)

        growth, codes = Growth(server), []
        for round_ in range(1, NUM_ROUNDS + 1):
            with grpc.insecure_channel(server.target, options=SMALL_WINDOW) as channel:
                stub = inference_pb2_grpc.InferenceServiceStub(channel)
                streams = [stub.GenerateStream(HEAVY, timeout=120) for _ in range(NUM_SLOW)]
                for stream in streams:
                    next(stream)
                for _ in range(50):
                    send_request()
                expected = round_ * NUM_SLOW
                growth.measure(lambda: num_ended(server, "GenerateStream") == expected)  # noqa: B023
                for stream in streams:  # data already in the transport arrives before the status
                    with pytest.raises(grpc.RpcError) as caught:
                        list(stream)
                    codes.append(caught.value.code())
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        record(
            12,
            "a client does not read its stream",
            "the buffer is bounded, then that stream ends with `RESOURCE_EXHAUSTED`; memory does "
            "not grow from round to round",
            streams=NUM_SLOW,
            rounds=NUM_ROUNDS,
            ended=len(codes),
            **growth.check(),
            p99_of_others_milliseconds=1000 * percentile(latencies, 0.99),
        )


def test_resets_unread_streams_of_events(tiny_bundles: Path) -> None:
    method = "/v1/completions"
    with faulty_server(tiny_bundles, *OPTIONS) as server:
        growth = Growth(server)
        for round_ in range(1, NUM_ROUNDS + 1):
            with ExitStack() as stack:
                for _ in range(NUM_SLOW):
                    stack.enter_context(
                        open_completion(server.http_port, prompt=["7,"] * 2, logprobs=98)
                    )
                expected = round_ * NUM_SLOW
                growth.measure(lambda: num_ended(server, method) == expected)  # noqa: B023
        wait_until(lambda: metric(server, "triune_sequences_running", model=DECODER) == 0)
        record(
            12,
            "a client of the HTTP front end does not read its stream of events",
            "the buffer is bounded, then the connection is reset; its slots are freed, and memory "
            "does not grow from round to round",
            streams=NUM_SLOW,
            rounds=NUM_ROUNDS,
            ended=int(num_ended(server, method)),
            **growth.check(),
        )
