"""Device names, replicas on several devices, and operators placed on the wrong device."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.sync import Client
from server.engine.requests.job import EncodingJob
from server.engine.requests.placement import (
    Placement,
    PrefixLanes,
    block_hashes,
    choose_lane,
    count_handles,
    divide_texts,
)
from server.errors import StartupError
from server.runtime import devices
from server.runtime.devices import Device, NodePlacement, provider_options
from tests.serving import server_process


@pytest.mark.parametrize(
    ("text", "names"),
    [("cpu", ("cpu",)), ("cuda", ("cuda",)), ("cuda:0, cuda:3", ("cuda:0", "cuda:3"))],
)
def test_parses_comma_separated_device_names(text: str, names: tuple[str, ...]) -> None:
    assert devices.parse_devices(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu", "unknown device 'tpu'"),
        ("cuda:x", "unknown device 'cuda:x'"),
        ("cpu:1", "unknown device 'cpu:1'"),
        ("cuda:", "unknown device 'cuda:'"),
        ("", "unknown device ''"),
        ("cpu,cuda", "several kinds"),
        ("cuda,cuda:0", "a GPU twice"),
    ],
)
def test_rejects_invalid_device_names(text: str, message: str) -> None:
    with pytest.raises(StartupError, match=message):
        devices.parse_devices(text)


@given(
    loads=st.integers(1, 4).flatmap(
        lambda lanes: st.lists(
            st.lists(st.integers(0, 9), min_size=lanes, max_size=lanes), min_size=1, max_size=4
        )
    ),
    num_rows=st.integers(1, 5),
    single_lane_max_sequences=st.integers(0, 8),
)
def test_schedules_jobs_on_the_least_loaded_device(
    loads, num_rows, single_lane_max_sequences
) -> None:
    all_loads = [load for device in loads for load in device]
    lane = choose_lane(all_loads, len(loads), num_rows, single_lane_max_sequences)
    device, index = divmod(lane, len(loads[0]))
    device_lanes = loads[device]
    assert sum(device_lanes) == min(map(sum, loads))
    if device_lanes[index] != min(device_lanes):
        assert device_lanes[index] == sum(device_lanes), (
            "only a lane that has all of a device's work gets more"
        )
        assert device_lanes[index] + num_rows <= single_lane_max_sequences


def test_small_jobs_use_one_lane_and_large_jobs_several() -> None:
    assert choose_lane([3, 0], 1, 1, single_lane_max_sequences=4) == 0
    assert choose_lane([4, 0], 1, 1, single_lane_max_sequences=4) == 1
    assert choose_lane([0, 0, 3, 0], 2, 1, single_lane_max_sequences=4) == 0


def test_runs_that_may_be_captured_are_on_a_given_stream() -> None:
    gpu = Device("cuda", 1)
    captured = provider_options(gpu, records=True, stream=1 << 40)
    assert captured["user_compute_stream"] == "1099511627776"
    assert captured["enable_cuda_graph"] == "1"
    assert "user_compute_stream" not in provider_options(gpu, records=True)
    assert provider_options(Device("cpu", 0), records=False) == {}


def test_allows_shape_operators_but_not_matmuls_on_the_host() -> None:
    gpu = Device("cuda", 0)
    shapes = [NodePlacement("CPUExecutionProvider", name) for name in ("Shape", "Concat", "Range")]
    on_gpu = [NodePlacement("CUDAExecutionProvider", "MatMul")]
    assert devices.misplaced_operators(gpu, [*shapes, *on_gpu]) == []
    misplaced = [
        NodePlacement("CPUExecutionProvider", name) for name in ("MatMulInteger", "Gather", "Erf")
    ]
    assert devices.misplaced_operators(gpu, [*misplaced, *on_gpu]) == ["Erf", "MatMulInteger"]


def test_reads_node_placements_from_the_runtime(tiny_bundles: Path) -> None:
    """Runs the GPU check on a session whose nodes all fell back to the CPU."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    path = tiny_bundles / "tiny-decoder" / "1" / "decode.onnx"
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    placements = [
        NodePlacement(part.ep_name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]
    assert "GroupQueryAttention" in devices.misplaced_operators(Device("cuda", 0), placements)
    assert devices.misplaced_operators(Device("cpu", 0), placements) == []


def test_replicas_return_the_same_outputs_and_share_the_load(tiny_bundles: Path) -> None:
    options = ("--device", "cpu,cpu", "--slots", "3", "--device-memory")
    with server_process(tiny_bundles, *options) as server:
        with Client(server.target, timeout_seconds=60) as client:

            def send_request(number: int) -> str:
                return client.generate("tiny-decoder", f"{number},").outputs[0].text

            alone = [send_request(number) for number in range(8)]
            with ThreadPoolExecutor(16) as pool:
                together = list(pool.map(send_request, list(range(8)) * 4))
        assert together == alone * 4
        metrics = urlopen(server.metrics_url).read().decode()
    assert 'lane="1"' in metrics, "both devices had work"
    assert 'lane="2"' not in metrics
    assert "triune_cuda_graphs{" in metrics


def test_prefers_the_lane_that_holds_the_prefix_if_loads_are_similar() -> None:
    assert choose_lane([3, 0], 1, 1, single_lane_max_sequences=4, preferred=1) == 1
    assert choose_lane([7, 5], 1, 1, single_lane_max_sequences=4, preferred=0) == 0
    assert choose_lane([8, 5], 1, 1, single_lane_max_sequences=4, preferred=0) == 1


def test_finds_the_lane_of_the_longest_known_prefix() -> None:
    lanes, prompt = PrefixLanes(), list(range(100))
    assert lanes.find(block_hashes(0, "", prompt)) is None
    lanes.record(block_hashes(0, "", prompt), 1)
    lanes.record(block_hashes(0, "", [*prompt[:40], *prompt]), 2)
    assert lanes.find(block_hashes(0, "", [*prompt, 7, 8])) == 1
    assert lanes.find(block_hashes(0, "", prompt[:40])) == 2
    assert lanes.find(block_hashes(0, "", prompt[:31])) is None
    assert lanes.find(block_hashes(0, "", prompt[1:])) is None
    assert lanes.find(block_hashes(1, "", prompt)) is None
    assert lanes.find(block_hashes(0, "alice", prompt)) is None


def test_forgets_the_prefixes_used_longest_ago() -> None:
    lanes = PrefixLanes()
    for number in range(1 << 15):
        lanes.record(block_hashes(0, "", [number] * 32), 1)
        lanes.record(block_hashes(0, "", [1 << 20] * 32), 2)
    assert lanes.find(block_hashes(0, "", [0] * 32)) is None
    assert lanes.find(block_hashes(0, "", [(1 << 15) - 1] * 32)) == 1
    assert lanes.find(block_hashes(0, "", [1 << 20] * 32)) == 2


@given(st.integers(1, 2000), st.integers(1, 8))
def test_lanes_share_the_texts_of_a_request_evenly(num_texts: int, num_lanes: int) -> None:
    placement, loads = Placement(num_lanes, 1, 0), [0] * num_lanes
    num_handles = count_handles(num_texts, num_lanes)
    assert num_handles <= max(64, 4 * num_lanes)
    starts = divide_texts(num_texts, num_handles)
    assert (starts[0], starts[-1], len(starts)) == (0, num_texts, num_handles + 1)
    for start, stop in itertools.pairwise(starts):
        loads[placement.place(0, EncodingJob((2,)), stop - start)] += stop - start
    assert max(loads) - min(loads) <= max(1, -(-num_texts // num_handles))
    assert max(loads) <= 1.1 * num_texts / num_lanes + 1
