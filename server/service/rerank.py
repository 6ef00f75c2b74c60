"""Rerank: documents by how well they fit a query."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from model.bundle import Task
from protos.triune.v1 import encoding_pb2 as pb
from server.service import encoder_options as options
from server.service import validation
from server.service.caller import Caller
from server.service.context import Services
from server.service.embedding import normalized, prompt_of
from server.service.encoding import EncoderCall, report_of
from server.text.windows import LengthLimit, LongInput, TokenizedText


async def rerank(
    request: pb.RerankRequest, services: Services, caller: Caller
) -> pb.RerankResponse:
    """By the cross-encoder's score, or by the cosine of the two vectors of a model that embeds.

    A document in several windows has the score of its best one (Dai and Callan 2019).

    Raises:
        ServeError: what went wrong.
    """
    call = EncoderCall.open(request.model, request.version, Task.RERANK, services, caller)
    max_bytes = services.config.max_input_bytes
    validation.check_text(request.query, max_bytes, "query")
    validation.check_texts(request.documents, max_bytes, "documents")
    top_n = options.integer("options.top_n", request.options, None)
    limit = options.limit(request.length, call.model, LongInput.ERROR)
    embeds = Task.EMBED in call.model.manifest.tasks
    score = _by_cosine if embeds else _by_cross_encoder
    readings, scores = await score(request, call, limit)
    usage, timing = call.finish()
    order = np.argsort(-np.array(scores), kind="stable")[:top_n]
    return pb.RerankResponse(
        model=call.model.manifest.name,
        outputs=[
            pb.RankedDocument(
                index=index,
                score=scores[index],
                document=request.documents[index] if request.options.return_documents else "",
                reading=report_of(readings[index]),
            )
            for index in order
        ],
        usage=usage,
        timing=timing,
    )


Scored = tuple[Sequence[TokenizedText], list[float]]


async def _by_cross_encoder(
    request: pb.RerankRequest, call: EncoderCall, limit: LengthLimit
) -> Scored:
    function = options.scores("options.score_function", request.options.score_function, call.model)
    documents = list(request.documents)
    readings = await call.read(
        [request.query] * len(documents), limit, pairs=documents, path="documents[{}]"
    )
    outputs = await call.run(call.jobs(readings))
    return readings, [
        max(float(function(output.vector)[0]) for output in windows) for windows in outputs
    ]


async def _by_cosine(request: pb.RerankRequest, call: EncoderCall, limit: LengthLimit) -> Scored:
    given, embedding = request.options, call.model.manifest.embedding
    before_query = prompt_of(
        embedding,
        given.query_prompt_name if given.HasField("query_prompt_name") else None,
        "options.query_prompt_name",
    )
    before_document = prompt_of(
        embedding,
        given.document_prompt_name if given.HasField("document_prompt_name") else None,
        "options.document_prompt_name",
    )
    # A query is one window: its cosine to each of a document's is what counts.
    whole = replace(limit, fit=LongInput.ERROR) if limit.fit == LongInput.WINDOWS else limit
    query = await call.read([before_query + request.query], whole, path="query")
    documents = [before_document + document for document in request.documents]
    readings = await call.read(documents, limit, path="documents[{}]")
    (asked,), *outputs = await call.run(call.jobs([*query, *readings]))
    unit = normalized(asked.vector)
    return readings, [
        max(float(normalized(output.vector) @ unit) for output in windows) for windows in outputs
    ]
