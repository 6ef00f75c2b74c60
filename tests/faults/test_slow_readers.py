"""Clients that ask for much and read nothing."""

import time
from pathlib import Path

import grpc
import pytest

from client.sync import Client
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from tests.faults.record import percentile, record
from tests.faults.serving import DECODER, faulty_server, metric, until

pytestmark = pytest.mark.heavy

# The client tells the server of no more room than HTTP/2's first window, 64 KiB.
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1))
NUM_SLOW = 20
# Each token comes with the log-probabilities of a hundred: about 1 MB for all of them.
HEAVY = pb.GenerateStreamRequest(
    model=DECODER,
    inputs=["1,"],
    stopping=pb.StoppingOptions(max_new_tokens=240, ignore_eos=True),
    response=pb.ResponseOptions(logprobs=True, top_logprobs=98),
)


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_a_stream_that_is_not_read_is_ended_and_harms_no_other(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, "--slots", "8", "--stall-seconds", "1") as server,
        Client(server.target, timeout_seconds=120) as good,
    ):
        alone = good.generate(DECODER, "7,", max_new_tokens=8).outputs[0].text
        latencies: list[float] = []

        def ask() -> None:
            started = time.monotonic()
            assert good.generate(DECODER, "7,", max_new_tokens=8).outputs[0].text == alone
            latencies.append(time.monotonic() - started)

        before = resident_bytes(server.process.pid)
        with grpc.insecure_channel(server.target, options=SMALL_WINDOW) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            streams = [stub.GenerateStream(HEAVY, timeout=120) for _ in range(NUM_SLOW)]
            for stream in streams:
                next(stream)
            for _ in range(50):
                ask()
            after = resident_bytes(server.process.pid)
            ended = {"method": "GenerateStream", "status": "RESOURCE_EXHAUSTED"}
            until(lambda: metric(server, "triune_requests_total", **ended) == NUM_SLOW)
            codes = []
            for stream in streams:  # what the transport had taken still comes, then the status
                with pytest.raises(grpc.RpcError) as caught:
                    list(stream)
                codes.append(caught.value.code())
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        record(
            12,
            "a client does not read its stream",
            "the buffer is bounded, then that stream ends with `RESOURCE_EXHAUSTED`",
            streams=NUM_SLOW,
            ended=len(codes),
            growth_MB=(after - before) / 1e6,
            p99_of_others_milliseconds=1000 * percentile(latencies, 0.99),
        )
