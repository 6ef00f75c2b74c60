"""Clients that request large streams and do not read them."""

import time
from pathlib import Path

import grpc
import pytest

from client.sync import Client
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from tests.faults.record import percentile, record
from tests.faults.serving import DECODER, faulty_server, metric, wait_until

pytestmark = pytest.mark.heavy

# Keeps the HTTP/2 flow-control window at its initial 64 KiB.
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1))
NUM_SLOW = 20
# 98 top logprobs per token: about 1 MB per stream.
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


def test_ends_unread_streams_without_affecting_others(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, "--slots", "8", "--stall-seconds", "1") as server,
        Client(server.target, timeout_seconds=120) as good,
    ):
        alone = good.generate(DECODER, "7,", max_new_tokens=8).outputs[0].text
        latencies: list[float] = []

        def send_request() -> None:
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
                send_request()
            after = resident_bytes(server.process.pid)
            labels = {"method": "GenerateStream", "status": "RESOURCE_EXHAUSTED"}
            wait_until(lambda: metric(server, "triune_requests_total", **labels) == NUM_SLOW)
            codes = []
            for stream in streams:  # data already in the transport arrives before the status
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
