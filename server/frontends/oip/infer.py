"""Runs inference requests: decodes tensors, calls the service, encodes its result."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from server.errors import InvalidArgumentError
from server.frontends.oip.fields import tensor_fields
from server.frontends.oip.messages import FINAL_RESPONSE, InferRequest, InferResponse
from server.frontends.oip.options import Parameter
from server.frontends.oip.requests import DecodedRequest, decode_request
from server.frontends.oip.results import encode_chunk, encode_result
from server.frontends.oip.signatures import Task
from server.service.caller import Caller
from server.service.generation_request import GenerationRequest, TextChunk
from server.service.service import Service


@dataclass(frozen=True, slots=True)
class _Call:
    """A decoded request, its response without outputs, and its caller (with deadline)."""

    decoded: DecodedRequest
    response: InferResponse
    caller: Caller
    ends_with_empty_response: bool


class Inference:
    """Implements ModelInfer and ModelStreamInfer for the gRPC and HTTP front ends."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._answers: dict[Task, Callable[[Any, Caller], Awaitable[Any]]] = {
            Task.GENERATE: service.generate,
            Task.TRANSLATE: service.translate,
            Task.EMBED: service.embed,
            Task.CLASSIFY: service.classify,
            Task.TAG: service.tag,
            Task.CORRECT: service.correct,
            Task.FILL_MASK: service.fill_mask,
            Task.ANSWER: service.answer,
            Task.RERANK: service.rerank,
            Task.SCORE: service.score,
            Task.TRANSCRIBE: service.transcribe,
        }

    async def infer(self, request: InferRequest, caller: Caller) -> InferResponse:
        """Returns the only response to a request.

        Raises:
            ServeError: the service's error; its fields are names of tensors and parameters.
        """
        call = self._open(request, caller)
        if call.decoded.streams:
            raise InvalidArgumentError("stream", "needs ModelStreamInfer, or generate_stream")
        return await self._answer(call)

    async def stream(
        self, request: InferRequest, caller: Caller
    ) -> AsyncGenerator[InferResponse, None]:
        """Yields the responses to a request: one per chunk of generated text, else only one.

        The parameter ``triton_final_response`` marks the last one, which is empty if the request
        asks for that.

        Raises:
            ServeError: the service's error; its fields are names of tensors and parameters.
        """
        call = self._open(request, caller)
        is_final = not call.ends_with_empty_response
        if not isinstance(call.decoded.request, GenerationRequest) or call.decoded.streams is False:
            response = await self._answer(call)
            yield replace(response, parameters={FINAL_RESPONSE: is_final})
        else:
            async with aclosing(self._chunks(call)) as responses:
                async for response in responses:
                    yield response
        if not is_final:
            yield replace(call.response, parameters={FINAL_RESPONSE: True})

    async def _chunks(self, call: _Call) -> AsyncGenerator[InferResponse, None]:
        decoded, request = call.decoded, call.decoded.request
        is_generate = decoded.task == Task.GENERATE
        start: Any = (
            self._service.generate_stream if is_generate else self._service.translate_stream
        )
        with tensor_fields(decoded.task, decoded.sent):
            chunks = await start(request, call.caller)
            num_open = _num_outputs(request)
            has_several = num_open > 1
            async with aclosing(chunks):
                async for chunk in chunks:
                    num_open -= chunk.finish is not None
                    is_last = num_open == 0 and not call.ends_with_empty_response
                    yield _chunk_response(call, chunk, is_last=is_last, has_several=has_several)
        if num_open and not call.ends_with_empty_response:  # beam search found fewer hypotheses
            yield replace(call.response, parameters={FINAL_RESPONSE: True})

    async def _answer(self, call: _Call) -> InferResponse:
        decoded = call.decoded
        with tensor_fields(decoded.task, decoded.sent):
            result = await self._answers[decoded.task](decoded.request, call.caller)
        outputs = await self._service.build(
            result.num_values, lambda: encode_result(decoded, result), call.caller
        )
        return replace(call.response, outputs=outputs)

    def _open(self, request: InferRequest, caller: Caller) -> _Call:
        manifest = self._service.manifest(request.model, request.version)
        timeout = request.timeout_seconds
        if timeout is not None:
            deadline = time.monotonic() + timeout
            if caller.deadline is None or deadline < caller.deadline:
                caller = replace(caller, deadline=deadline)
        return _Call(
            decode_request(request, manifest),
            InferResponse(manifest.name, manifest.version, request.id),
            caller,
            request.wants_empty_final_response,
        )


def _num_outputs(request: Any) -> int:
    """Number of texts that a stream generates; each ends with a chunk that has ``finish``."""
    num_inputs = len(request.inputs) or len(getattr(request, "token_inputs", ()))
    count: int = num_inputs * request.decoding.num_hypotheses
    return count


def _chunk_response(
    call: _Call, chunk: TextChunk, *, is_last: bool, has_several: bool
) -> InferResponse:
    parameters: dict[str, Parameter] = {FINAL_RESPONSE: is_last}
    if has_several:
        parameters |= {"index": chunk.index, "hypothesis": chunk.hypothesis}
    return replace(call.response, outputs=encode_chunk(call.decoded, chunk), parameters=parameters)
