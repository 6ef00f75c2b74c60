"""Tokenize: texts as a model splits them."""

import time

from protos.triune.v1 import common_pb2
from protos.triune.v1 import inference_pb2 as pb
from server.service import validation
from server.service.caller import Caller
from server.service.context import Services


async def tokenize(
    request: pb.TokenizeRequest, services: Services, caller: Caller
) -> pb.TokenizeResponse:
    """Raises ``ServeError``."""
    started = time.monotonic()
    model = services.registry.get(request.model, request.version)
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    rows = await services.tokenized(
        request.inputs,
        lambda: model.tokenizer.encode(
            request.inputs, special_tokens=not request.without_special_tokens
        ),
        caller,
    )
    seconds = time.monotonic() - started
    return pb.TokenizeResponse(
        model=model.manifest.name,
        outputs=[
            pb.Tokenization(token_ids=row, tokens=model.tokenizer.tokens(row)) for row in rows
        ],
        usage=common_pb2.Usage(input_tokens=sum(len(row) for row in rows)),
        timing=common_pb2.Timing(tokenize_seconds=seconds, total_seconds=seconds),
    )
