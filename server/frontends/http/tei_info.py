"""text-embeddings-inference's ``/info``."""

from typing import Any

from starlette.responses import Response

from model.bundle import EmbeddingKind, Task
from server.bounds import MAX_TEXTS
from server.frontends.http.endpoint import Call, json_response
from server.frontends.oip.models import server_version
from server.service.model_info import ModelInfo


async def info(name: str, call: Call[None]) -> Response:
    """Describes a model, in TEI's fields."""
    model = call.service.get_model(name)
    return json_response(
        {
            "model_id": model.name,
            "model_sha": None,
            "model_dtype": model.precision,
            "model_type": _model_type(model),
            "max_concurrent_requests": None,
            "max_input_length": model.max_length,
            "max_batch_tokens": None,
            "max_batch_requests": None,
            "max_client_batch_size": MAX_TEXTS,  # clients send at most so many texts
            "auto_truncate": False,
            "tokenization_workers": None,
            "version": server_version(),
            "sha": None,
            "docker_label": None,
        }
    )


def _model_type(model: ModelInfo) -> dict[str, Any] | None:
    """TEI's name for a kind of model; ``None`` for kinds that TEI does not serve."""
    embedding = model.embedding
    if embedding is not None:
        names = {EmbeddingKind.SPARSE: "splade", EmbeddingKind.DENSE: embedding.pooling}
        return {"embedding": {"pooling": names.get(embedding.kind, embedding.kind)}}
    is_reranker = Task.RERANK in model.tasks
    if not is_reranker and not model.labels:
        return None
    labels = dict(enumerate(model.labels))
    name = "reranker" if is_reranker else "classifier"
    return {
        name: {
            "id2label": {str(id_): label for id_, label in labels.items()},
            "label2id": {label: id_ for id_, label in labels.items()},
        }
    }
