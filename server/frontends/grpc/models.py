"""``ModelService`` and ``AdminService``: list, describe, load and unload models."""

from model.bundle import Fidelity, Parity
from model.config import Kind
from model.quality import Measurement
from protos.triune.v1 import admin_pb2, admin_pb2_grpc, models_pb2_grpc
from protos.triune.v1 import models_pb2 as pb
from server.frontends.grpc.calls import rpc_scope
from server.frontends.grpc.context import Context
from server.service.model_info import EmbeddingInfo, MemoryInfo, ModelInfo, State
from server.service.service import Service

_KINDS = {kind: pb.ModelKind.Value(f"MODEL_KIND_{kind.name}") for kind in Kind}
_STATES = {state: pb.ModelState.Value(f"MODEL_STATE_{state.name}") for state in State}


class ModelServicer(models_pb2_grpc.ModelServiceServicer):
    """The handlers of ``ModelService``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        async with rpc_scope(self._service, "ListModels", request, context):
            return pb.ListModelsResponse(
                models=[model_message(info) for info in self._service.list_models()]
            )

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        async with rpc_scope(self._service, "GetModel", request, context):
            info = self._service.get_model(request.model, request.version)
            return pb.GetModelResponse(model=model_message(info))


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """The handlers of ``AdminService``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def LoadModel(
        self, request: admin_pb2.LoadModelRequest, context: Context
    ) -> admin_pb2.LoadModelResponse:
        # This call does not use the model that it replaces, so it must not keep it loaded.
        async with rpc_scope(self._service, "LoadModel", request, context, keeps_model=False):
            info = await self._service.load_model(request.model, request.version)
            return admin_pb2.LoadModelResponse(model=model_message(info))

    async def UnloadModel(
        self, request: admin_pb2.UnloadModelRequest, context: Context
    ) -> admin_pb2.UnloadModelResponse:
        async with rpc_scope(self._service, "UnloadModel", request, context, keeps_model=False):
            versions = await self._service.unload_model(request.model, request.version)
            return admin_pb2.UnloadModelResponse(versions=versions)


def model_message(info: ModelInfo) -> pb.Model:
    """Describes one version of a model as protobuf."""
    return pb.Model(
        name=info.name,
        version=info.version,
        state=_STATES[info.state],
        failure=info.failure,
        kind=pb.MODEL_KIND_UNSPECIFIED if info.kind is None else _KINDS[info.kind],
        tasks=info.tasks,
        architecture=info.architecture,
        precision=info.precision,
        license=info.license,
        parameters=info.parameters,
        vocabulary_size=info.vocabulary_size,
        hidden_size=info.hidden_size,
        max_length=info.max_length,
        source_language=info.source_language,
        target_language=info.target_language,
        languages=info.languages,
        labels=info.labels,
        has_chat_template=info.has_chat_template,
        parity=None if info.parity is None else _parity_message(info.parity),
        slots=info.slots,
        mask_token=info.mask_token,
        embedding=None if info.embedding is None else _embedding_message(info.embedding),
        kv_cache=info.kv_cache,
        cache_bytes_per_token=info.cache_bytes_per_token,
        native_kernels=info.native_kernels,
        quality=[_quality_message(measured) for measured in info.quality],
        memory=None if info.memory is None else _memory_message(info.memory),
    )


def _memory_message(memory: MemoryInfo) -> pb.MemoryInfo:
    return pb.MemoryInfo(
        weight_bytes=memory.weight_bytes,
        cache_bytes=memory.cache_bytes,
        cache_resident_bytes=memory.cache_resident_bytes,
        working_bytes=memory.working_bytes,
        prefix_slots=memory.prefix_slots,
    )


def _quality_message(measured: Measurement) -> pb.Quality:
    return pb.Quality(
        task=measured.task,
        dataset=measured.dataset,
        sha256=measured.sha256,
        num_examples=measured.num_examples,
        decoding=measured.decoding,
        metrics=measured.metrics,
        fp32_metrics=measured.fp32_metrics,
    )


def _parity_message(parity: Parity) -> pb.Parity:
    return pb.Parity(
        max_absolute_error=parity.max_absolute_error,
        greedy_tokens_compared=parity.greedy_tokens_compared,
        greedy_tokens_equal=parity.greedy_tokens_equal,
        min_cosine=parity.min_cosine,
        perplexity=parity.perplexity or 0.0,
        fp32_perplexity=parity.fp32_perplexity or 0.0,
        evaluation_tokens=parity.evaluation_tokens,
        float_cache_perplexity=parity.float_cache_perplexity or 0.0,
        fidelity=None if parity.fidelity is None else _fidelity_message(parity.fidelity),
    )


def _fidelity_message(fidelity: Fidelity) -> pb.Fidelity:
    return pb.Fidelity(
        num_texts=fidelity.num_texts,
        num_tokens=fidelity.num_tokens,
        top1_agreement=fidelity.top1_agreement,
        kl_divergence=fidelity.kl_divergence,
        rms_logprob_difference=fidelity.rms_logprob_difference,
        mean_probability=fidelity.mean_probability,
        identical_outputs=fidelity.identical_outputs,
        chrf=fidelity.chrf,
        min_cosine=fidelity.min_cosine,
        mean_cosine=fidelity.mean_cosine,
        retrieval_agreement=fidelity.retrieval_agreement,
        max_probability_difference=fidelity.max_probability_difference,
        exceeded_limits=fidelity.exceeded_limits,
    )


def _embedding_message(embedding: EmbeddingInfo) -> pb.EmbeddingInfo:
    return pb.EmbeddingInfo(
        size=embedding.size,
        is_normalized=embedding.is_normalized,
        pooling=embedding.pooling,
        truncations=embedding.truncations,
        prompts=embedding.prompts,
        default_prompt=embedding.default_prompt,
    )
