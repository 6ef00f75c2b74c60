"""``ModelService``: which models there are."""

from model.bundle import Embedding
from model.config import Kind
from protos.triune.v1 import models_pb2 as pb
from protos.triune.v1 import models_pb2_grpc
from server.config import ServerConfig
from server.frontends.grpc.calls import Context, guarded
from server.models.registry import Entry, State
from server.service.context import Services

KINDS = {
    Kind.ENCODER: pb.MODEL_KIND_ENCODER,
    Kind.DECODER: pb.MODEL_KIND_DECODER,
    Kind.ENCODER_DECODER: pb.MODEL_KIND_ENCODER_DECODER,
}

STATES = {
    State.LOADING: pb.MODEL_STATE_LOADING,
    State.READY: pb.MODEL_STATE_READY,
    State.REFUSED: pb.MODEL_STATE_REFUSED,
    State.UNLOADING: pb.MODEL_STATE_UNLOADING,
}


class ModelServicer(models_pb2_grpc.ModelServiceServicer):
    """Answers from the registry."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        del request
        catalog, metrics = self._services.catalog, self._services.metrics
        async with guarded("ListModels", "", context, catalog, metrics):
            entries = catalog.registry.entries
            return pb.ListModelsResponse(
                models=[describe(entry, self._services.config) for entry in entries]
            )

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        catalog, metrics = self._services.catalog, self._services.metrics
        async with guarded("GetModel", request.model, context, catalog, metrics):
            entry = catalog.registry.describe(request.model, request.version)
            return pb.GetModelResponse(model=describe(entry, self._services.config))


def describe(entry: Entry, config: ServerConfig) -> pb.Model:
    """All that is known of one version; of one that is not served, its state."""
    state, model = STATES[entry.state], entry.model
    if model is None:
        return pb.Model(name=entry.name, version=entry.version, state=state, failure=entry.failure)
    manifest, parity = model.manifest, model.parity
    is_encoder = manifest.kind == Kind.ENCODER
    decode = manifest.graphs.get("decode")
    return pb.Model(
        name=manifest.name,
        version=manifest.version,
        state=state,
        failure=entry.failure,
        kind=KINDS[manifest.kind],
        tasks=[task.value for task in manifest.tasks],
        architecture=manifest.architecture,
        precision=manifest.precision,
        license=manifest.license,
        parameters=manifest.dimensions.num_parameters,
        vocabulary_size=manifest.dimensions.vocabulary_size,
        hidden_size=manifest.dimensions.hidden_size,
        max_length=model.max_length,
        source_language=manifest.source_language or "",
        target_language=manifest.target_language or "",
        languages=list(manifest.languages),
        labels=manifest.labels,
        has_chat_template=model.chat_template is not None,
        parity=pb.Parity(
            max_absolute_error=parity.max_absolute_error,
            greedy_tokens_compared=parity.greedy_tokens_compared,
            greedy_tokens_equal=parity.greedy_tokens_equal,
            min_cosine=parity.min_cosine,
            perplexity=parity.perplexity or 0.0,
            fp32_perplexity=parity.fp32_perplexity or 0.0,
            evaluation_tokens=parity.evaluation_tokens,
            float_cache_perplexity=parity.float_cache_perplexity or 0.0,
        ),
        slots=0 if is_encoder else config.num_slots,
        mask_token=model.mask_token,
        embedding=_describe_embedding(manifest.embedding),
        kv_cache="" if decode is None else manifest.kv_cache,
        cache_bytes_per_token=0 if decode is None else decode.cache_bytes_per_token,
    )


def _describe_embedding(embedding: Embedding | None) -> pb.EmbeddingInfo | None:
    if embedding is None:
        return None
    return pb.EmbeddingInfo(
        size=embedding.size,
        is_normalized=embedding.is_normalized,
        pooling=embedding.pooling,
        truncations=embedding.truncations,
        prompts=embedding.prompts,
        default_prompt=embedding.default_prompt or "",
    )
