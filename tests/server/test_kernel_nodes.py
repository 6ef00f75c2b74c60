"""GetModel tells which native kernels compute nodes of a model's graphs, and how many nodes."""

import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import onnx
import pytest

from client.aio import AsyncClient
from client.types import AttentionOptions, Model
from model.bundle_files import read_manifest
from server.app import RunningServer
from server.models.registry import ATTENTION_GRAPHS
from server.runtime.kernels import rewrite as rewriting
from server.runtime.kernels.library import Kernels, supported_kernels
from server.runtime.rewriting.nodes import DOMAIN
from server.runtime.thread_switching import copies_of
from tests.server.in_process_server import serving

ALL_KERNELS = ~Kernels.LOGITS & Kernels(511)
needs_kernels = pytest.mark.skipif(
    ALL_KERNELS not in supported_kernels(), reason="this CPU cannot run the kernels"
)
# Kernels by the standard operators that they replace.
KERNELS = {
    "MatMulInteger": "int8_matmul",
    "MatMulNBits": "block_matmul",
    "MatMul": "matmul",
    "Gemm": "matmul",
    "GroupQueryAttention": "attention",
    "LayerNormalization": "norm",
    "RMSNormalization": "norm",
    "GatherBlockQuantized": "embedding",
}
FP32, INT8, INT4, INT8_CACHE = "dates", "classifier-int8", "decoder-int4", "decoder-cache8"
# Two layers each. An encoder's layer has 4 matrices and 2 norms; a decoder's with cross-attention
# has 6 (its keys and values come from the encoder's graph), 2 attentions and 3 norms. To these come
# a final norm, one of the classifier's embeddings, and the matrices of the heads.
NATIVE = {
    FP32: {
        "encode": {"attention": 2, "matmul": 2 * 4 + 2, "norm": 5},
        "decode": {"attention": 4, "matmul": 2 * 6 + 1, "norm": 7},
    },
    INT8: {"encode": {"attention": 2, "embedding": 1, "int8_matmul": 2 * 4 + 2, "norm": 6}},
    INT4: {"decode": {"attention": 2, "block_matmul": 2 * 4 + 1, "embedding": 1, "norm": 5}},
    INT8_CACHE: {"decode": {"matmul": 2 * 4 + 1, "norm": 5}},
}
# Products compute them. In blocks and int8, they normalize the rows they quantize: queries, keys
# and values in one, and the first of the feed-forward network. The embeddings' norm is theirs too.
FUSED_NORMS = {
    FP32: {"encode": 1, "decode": 1},
    INT8: {"encode": 2 * 2 + 1 + 1},
    INT4: {"decode": 2 * 2 + 1},
    INT8_CACHE: {"decode": 1},
}
# The attention kernel reads float caches only.
STANDARD = {INT8_CACHE: {"decode": {"attention": 2}}}


@pytest.fixture
def bundles(tiny_bundles: Path, compact_bundles: Path, tmp_path: Path) -> Path:
    """A copy: graphs of one path are rewritten once, with the kernels of the first test."""
    shutil.copytree(tiny_bundles / FP32, tmp_path / "bundles" / FP32)
    for name in (INT8, INT4, INT8_CACHE):
        shutil.copytree(compact_bundles / name, tmp_path / "bundles" / name)
    return tmp_path / "bundles"


@asynccontextmanager
async def served(bundles: Path) -> AsyncIterator[tuple[RunningServer, AsyncClient]]:
    """A server with two lanes, so that each graph is loaded twice."""
    async with (
        serving(bundles, num_lanes=2, num_threads=2, num_slots=2, max_length=64) as running,
        AsyncClient(f"127.0.0.1:{running.port}", timeout_seconds=60) as client,
    ):
        yield running, client


def counted_by_hand(bundles: Path, name: str) -> dict[str, dict[str, int]]:
    """For each graph that is loaded at start, its file's nodes by the kernel for their operator."""
    directory = bundles / name / "1"
    graphs = read_manifest(directory).graphs
    return {
        key: dict(Counter(_kernels(directory / graph.file)))
        for key, graph in graphs.items()
        if key not in ATTENTION_GRAPHS
    }


def _kernels(file: Path) -> list[str]:
    graph = onnx.load(file, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    return [
        KERNELS[node.op_type]
        for node in graph.node
        if node.op_type in KERNELS
        and (KERNELS[node.op_type] != "matmul" or node.input[1] in constants)
    ]


def native(model: Model) -> dict[str, dict[str, int]]:
    return {nodes.graph: dict(nodes.num_native) for nodes in model.kernel_nodes}


def standard(model: Model) -> dict[str, dict[str, int]]:
    found = {nodes.graph: dict(nodes.num_standard) for nodes in model.kernel_nodes}
    return {graph: counts for graph, counts in found.items() if counts}


def assigned_by_runtime(running: RunningServer, name: str) -> dict[str, int]:
    """For each graph that is loaded at start, the native nodes that ONNX Runtime will run."""
    counts = {}
    for key, graph in running.registry.get(name).replicas[0].graphs.items():
        if key in ATTENTION_GRAPHS:
            continue
        for copy in copies_of(graph):
            parts = copy.session.get_provider_graph_assignment_info()  # type: ignore[attr-defined]
            counts[key] = sum(node.domain == DOMAIN for part in parts for node in part.get_nodes())
    return counts


@needs_kernels
@pytest.mark.usefixtures("all_kernels")
async def test_the_nodes_of_each_graph_are_counted(bundles: Path) -> None:
    async with served(bundles) as (running, client):
        for name, expected in NATIVE.items():
            model = await client.get_model(name)
            assert native(model) == expected, name
            assert standard(model) == STANDARD.get(name, {}), name
            kernels = {kernel for counts in expected.values() for kernel in counts}
            assert model.native_kernels == tuple(sorted(kernels)), name
            both = {
                nodes.graph: dict(Counter(nodes.num_native) + Counter(nodes.num_standard))
                for nodes in model.kernel_nodes
            }
            assert both == counted_by_hand(bundles, name), name
            fused = FUSED_NORMS.get(name, {})
            sums = {
                graph: sum(counts.values()) - fused.get(graph, 0)
                for graph, counts in expected.items()
            }
            assert assigned_by_runtime(running, name) == sums, name


async def test_without_kernels_every_node_is_a_standard_one(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "preferred_kernels", lambda: Kernels(0))
    async with served(bundles) as (_, client):
        for model in await client.list_models():
            assert model.native_kernels == ()
            assert all(counts == {} for counts in native(model).values())
            assert standard(model) == counted_by_hand(bundles, model.name) != {}


@needs_kernels
async def test_only_the_kernels_in_use_count_as_native(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a CPU where ONNX Runtime multiplies int8 faster."""
    kernels = ALL_KERNELS & ~Kernels.INT8_MATMUL
    monkeypatch.setattr(rewriting, "preferred_kernels", lambda: kernels)
    async with served(bundles) as (_, client):
        model = await client.get_model(INT8)
    (nodes,) = model.kernel_nodes
    assert nodes.num_native == {"attention": 2, "embedding": 1, "norm": 6}
    assert nodes.num_standard == {"int8_matmul": 10}
    assert model.native_kernels == ("attention", "embedding", "norm")


@needs_kernels
@pytest.mark.usefixtures("all_kernels")
async def test_a_graph_loaded_on_first_use_is_listed_from_then_on(bundles: Path) -> None:
    async with served(bundles) as (_, client):
        before = await client.get_model(FP32)
        await client.translate(FP32, ["3 March 2021"], attention=AttentionOptions())
        after = await client.get_model(FP32)
    assert [nodes.graph for nodes in before.kernel_nodes] == ["encode", "decode"]
    assert after.kernel_nodes[:2] == before.kernel_nodes
    (attend,) = after.kernel_nodes[2:]
    assert attend.graph == "attend"
    # The kernel does not return the weights of cross-attention, which this graph is for.
    assert attend.num_native == {"attention": 2, "matmul": 13, "norm": 7}
    assert attend.num_standard == {"attention": 2}


@needs_kernels
@pytest.mark.parametrize("kernels", [ALL_KERNELS, ALL_KERNELS & ~Kernels.TOKEN_SUM])
async def test_the_sum_of_mean_pooling_is_counted(
    head_bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Kernels
) -> None:
    directory = shutil.copytree(head_bundles / "embedder", tmp_path / "bundles" / "embedder")
    monkeypatch.setattr(rewriting, "preferred_kernels", lambda: kernels)
    async with served(directory.parent) as (_, client):
        (counted,) = (await client.get_model("embedder")).kernel_nodes
    in_kernel = int(Kernels.TOKEN_SUM in kernels)
    assert counted.num_native.get("token_sum", 0) == in_kernel
    assert counted.num_standard.get("token_sum", 0) == 1 - in_kernel


def test_graphs_are_protobuf_whatever_their_name(bundles: Path) -> None:
    """The library would read a file with this name as text, which nobody has checked."""
    graph = bundles / FP32 / "1" / "decode.onnx"
    renamed = graph.with_suffix(".textproto")
    shutil.copy(graph, renamed)
    assert rewriting.kernel_nodes(renamed, None) == rewriting.kernel_nodes(graph, None)
    expected, found = (rewriting.rewrite(path, supported_kernels()) for path in (graph, renamed))
    assert (found and found.kernel_nodes) == (expected and expected.kernel_nodes)
