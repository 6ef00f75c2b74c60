"""Health, descriptions, streams, statistics, loading and access of the Open Inference Protocol."""

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.inference import open_inference_pb2 as pb
from protos.inference import open_inference_pb2_grpc
from tests.retrieval_models import MULTI_VECTOR, SPARSE
from tests.server.in_process_server import CLASSIFIER, serving
from tests.server.oip.conftest import Doors
from tests.server.oip.messages import infer_request, outputs_of, raw_texts

SERVICE = "inference.GRPCInferenceService"


def _get(doors: Doors, path: str) -> Any:
    with urllib.request.urlopen(doors.http + path, timeout=30) as response:
        return json.load(response)


def test_health(doors: Doors) -> None:
    assert doors.oip.ServerLive(pb.ServerLiveRequest()).live
    assert doors.oip.ServerReady(pb.ServerReadyRequest()).ready
    for name, version, ready in (("dates", "", True), ("dates", "1", True), ("dates", "2", False)):
        request = pb.ModelReadyRequest(name=name, version=version)
        assert doors.oip.ModelReady(request).ready == ready
    # As KServe's client reads them.
    assert _get(doors, "/v2/health/ready") == {"ready": True}
    assert _get(doors, "/v2/health/live") == {"live": True}
    assert _get(doors, "/v2/models/dates/versions/1/ready") == {"ready": True}


def test_metadata_is_the_same_by_grpc_and_http(doors: Doors) -> None:
    by_grpc = doors.oip.ModelMetadata(pb.ModelMetadataRequest(name="embedder"))
    by_http = _get(doors, "/v2/models/embedder")
    assert [tensor.name for tensor in by_grpc.inputs] == ["text_input", "query", "passages"]
    assert [tensor.name for tensor in by_grpc.outputs] == ["embedding_output", "scores"]
    assert by_http["inputs"] == [
        {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        for tensor in by_grpc.inputs
    ]
    assert by_http["versions"] == list(by_grpc.versions) == ["1"]
    metadata = doors.oip.ServerMetadata(pb.ServerMetadataRequest())
    assert _get(doors, "/v2")["extensions"] == list(metadata.extensions)


@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        (SPARSE, {"indices": [-1, 2], "values": [-1], "tokens": [-1]}),
        (MULTI_VECTOR, {"token_embeddings": [-1, -1], "tokens": [-1], "spans": [-1, 3]}),
    ],
)
def test_metadata_tell_the_kind_of_embeddings(
    doors: Doors, model: str, outputs: dict[str, list[int]]
) -> None:
    metadata = doors.oip.ModelMetadata(pb.ModelMetadataRequest(name=model))
    shapes = {tensor.name: list(tensor.shape) for tensor in metadata.outputs}
    assert shapes == {**outputs, "scores": [-1]}


@pytest.mark.parametrize(("model", "decoupled"), [("dates", True), ("embedder", False)])
def test_configuration_says_which_models_stream(doors: Doors, model: str, decoupled: bool) -> None:
    config = doors.oip.ModelConfig(pb.ModelConfigRequest(name=model)).config
    assert config.model_transaction_policy.decoupled == decoupled
    assert config.dynamic_batching.priority_levels == (201 if decoupled else 0)
    served = _get(doors, f"/v2/models/{model}/config")
    assert served["model_transaction_policy"] == {"decoupled": decoupled}


def test_several_texts_and_samples(doors: Doors) -> None:
    options = {"num_hypotheses": 2, "temperature": 1.0, "seed": 1, "max_new_tokens": 4}
    request = infer_request("tiny-decoder", options, text_input=([2, 1], ["1", "2"]))
    names = ("text_output", "finish_reason", "num_input_tokens", "output_ids", "cumulative_logprob")
    for name in names:
        request.outputs.add(name=name)
    found = outputs_of(doors.oip.ModelInfer(request))
    assert list(found) == [name for name in found if name in names]
    assert found["text_output"].shape == (2, 2)
    assert set(found["finish_reason"].ravel()) <= {"stop", "length"}
    assert found["num_input_tokens"][:, 1].tolist() == [0, 0]
    assert found["output_ids"].shape[0] == 4
    assert (found["cumulative_logprob"] < 0).all()


def test_typed_contents_and_shapes(doors: Doors) -> None:
    raw = infer_request("embedder", text_input=([2, 1], ["a", "b"]))
    typed = pb.ModelInferRequest(model_name="embedder")
    tensor = typed.inputs.add(name="text_input", datatype="BYTES", shape=[2, 1])
    tensor.contents.bytes_contents.extend([b"a", b"b"])
    vectors = [outputs_of(doors.oip.ModelInfer(x))["embedding_output"] for x in (raw, typed)]
    assert vectors[0].tolist() == vectors[1].tolist()
    ids = pb.ModelInferRequest(model_name="tiny-decoder")
    tensor = ids.inputs.add(name="input_ids", datatype="INT32", shape=[2])
    tensor.contents.int_contents.extend([3, 4])
    assert outputs_of(doors.oip.ModelInfer(ids))["text_output"].shape == (1,)


def test_outputs_of_other_tasks_are_left_out(doors: Doors) -> None:
    request = infer_request("embedder", text_input=["a"])
    for name in ("scores", "embedding_output"):
        request.outputs.add(name=name)
    assert list(outputs_of(doors.oip.ModelInfer(request))) == ["embedding_output"]
    del request.outputs[1]
    with pytest.raises(grpc.RpcError) as caught:
        doors.oip.ModelInfer(request)
    assert str(caught.value.details()).startswith("scores: is not an output of embed")


def test_timeout_is_a_deadline(doors: Doors) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        doors.oip.ModelInfer(infer_request("dates", {"timeout": 1}, text_input=["3 March 2021"]))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_statistics_count_calls(doors: Doors) -> None:
    def read() -> Any:
        found = doors.oip.ModelStatistics(pb.ModelStatisticsRequest(name="sorter"))
        return found.model_stats[0]

    before, started = read(), time.time()
    doors.oip.ModelInfer(infer_request("sorter", text_input=["a", "b"]))
    doors.ours.classify("sorter", ["a"])
    with pytest.raises(grpc.RpcError):
        doors.oip.ModelInfer(infer_request("sorter", {"top_k": -1}, text_input=["a"]))
    after = read()
    assert after.inference_count - before.inference_count == 3
    assert after.execution_count - before.execution_count == 2
    stats = after.inference_stats
    assert stats.success.count - before.inference_stats.success.count == 2
    assert stats.fail.count - before.inference_stats.fail.count == 1
    assert stats.success.ns > stats.compute_infer.ns > 0
    assert after.last_inference >= (started - 1) * 1000
    served = _get(doors, "/v2/models/sorter/stats")["model_stats"][0]
    assert served["inference_count"] == after.inference_count
    everything = _get(doors, "/v2/models/stats")["model_stats"]
    assert {one["name"] for one in everything} >= {"sorter", "dates", "embedder"}


def test_models_are_loaded_on_the_admin_address_only(tiny_bundles: Path) -> None:
    async def run() -> None:
        async with (
            serving(tiny_bundles) as running,
            grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as main,
            grpc.aio.insecure_channel(f"127.0.0.1:{running.admin_port}") as admin_channel,
        ):
            public = open_inference_pb2_grpc.GRPCInferenceServiceStub(main)
            admin = open_inference_pb2_grpc.GRPCInferenceServiceStub(admin_channel)
            unload = pb.RepositoryModelUnloadRequest(model_name="dates")
            load = pb.RepositoryModelLoadRequest(model_name="dates")
            for call in (public.RepositoryModelUnload(unload), public.RepositoryModelLoad(load)):
                assert await _code_of(call) == grpc.StatusCode.UNIMPLEMENTED
            # As KServe's clients send it.
            answer = await admin.RepositoryModelUnload(
                pb.RepositoryModelUnloadRequest(repository_name="dates")
            )
            assert (answer.model_name, answer.isUnloaded) == ("dates", True)
            ready = pb.RepositoryIndexRequest(ready=True)
            index = await admin.RepositoryIndex(ready)
            assert "dates" not in {model.name for model in index.models}
            assert not (await public.ModelReady(pb.ModelReadyRequest(name="dates"))).ready
            await admin.RepositoryModelLoad(load)
            assert (await public.ModelReady(pb.ModelReadyRequest(name="dates"))).ready
            load.parameters["config"].string_param = "{}"
            code = await _code_of(admin.RepositoryModelLoad(load))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            infer = admin.ModelInfer(infer_request("dates", text_input=["1"]))
            assert await _code_of(infer) == grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(run())


async def _code_of(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


def test_calls_need_a_token(bundles: Path, tokens: Path) -> None:
    async def run() -> None:
        async with (
            serving(bundles, tokens=tokens) as running,
            grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
        ):
            stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
            request = infer_request(CLASSIFIER, text_input=["12"])
            for call in (
                stub.ModelInfer(request),
                stub.RepositoryIndex(pb.RepositoryIndexRequest()),
                stub.ModelReady(pb.ModelReadyRequest(name=CLASSIFIER)),
            ):
                assert await _code_of(call) == grpc.StatusCode.UNAUTHENTICATED
            token = (("authorization", "Bearer first-token"),)
            response = await stub.ModelInfer(request, metadata=token)
            assert outputs_of(response)["labels"].shape == (1, 2)

    asyncio.run(run())


@pytest.mark.parametrize(
    "method",
    ["SystemSharedMemoryStatus", "CudaSharedMemoryRegister", "TraceSetting", "LogSettings"],
)
def test_what_is_not_supported_says_so(doors: Doors, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(doors.oip, method)(getattr(pb, f"{method}Request")())
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "support" in str(caught.value.details()) or "command line" in str(caught.value.details())


def test_a_client_that_knows_only_reflection(doors: Doors) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{doors.running.port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)

        def ask(**request: str) -> Any:
            return next(
                stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**request)]))
            )

        listed = ask(list_services="").list_services_response.service
        assert SERVICE in {service.name for service in listed}
        pool = descriptor_pool.DescriptorPool()
        files = ask(file_containing_symbol=SERVICE).file_descriptor_response.file_descriptor_proto
        for serialized in reversed(files):  # dependencies are last
            pool.Add(FileDescriptorProto.FromString(serialized))
        method = pool.FindServiceByName(SERVICE).FindMethodByName("ModelInfer")
        request_type: Any = message_factory.GetMessageClass(method.input_type)
        response_type = message_factory.GetMessageClass(method.output_type)
        request = request_type(model_name="dates", raw_input_contents=[raw_texts("3 March 2021")])
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
        call = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString,
        )
        assert outputs_of(call(request))["text_output"].tolist() == ["2021-03-03"]
