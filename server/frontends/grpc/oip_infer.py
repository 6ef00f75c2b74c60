"""ModelInfer and ModelStreamInfer of the Open Inference Protocol."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from protos.inference import open_inference_pb2 as pb
from server.errors import InvalidArgumentError, OverloadedError, ServeError
from server.frontends.grpc.calls import abort, caller_of, rpc_scope
from server.frontends.grpc.context import Context
from server.frontends.grpc.oip_codec import decode_infer, encode_infer
from server.frontends.grpc.status import message_of
from server.frontends.grpc.stream_writer import StreamWriter
from server.frontends.oip.infer import Inference
from server.frontends.oip.messages import FINAL_RESPONSE, InferResponse
from server.service.caller import Caller
from server.service.service import Service

# Maximum concurrent requests per stream. The next one is read when one of them ends.
MAX_CONCURRENT_REQUESTS = 256


async def encoded(
    response: InferResponse, service: Service, caller: Caller
) -> pb.ModelInferResponse:
    """Encodes a response; one with many values is encoded in a thread."""
    return await service.build(response.num_values, lambda: encode_infer(response), caller)


class InferCalls:
    """Runs the inference calls of one listener."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._inference = Inference(service)

    async def infer(self, message: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        async with rpc_scope(
            self._service, "ModelInfer", message, context, model=message.model_name
        ):
            caller = caller_of(context)
            response = await self._inference.infer(decode_infer(message), caller)
            return await encoded(response, self._service, caller)

    async def stream(self, messages: AsyncIterator[pb.ModelInferRequest], context: Context) -> None:
        """Runs the requests of a stream concurrently. A failed one does not end the stream."""
        caller = caller_of(context)
        try:
            async with StreamWriter(context, self._service.stall_seconds) as writer:
                stream = _Stream(self._service, self._inference, writer, caller)
                await stream.run(messages)
        except OverloadedError as error:  # the client does not read
            await abort(error, context)


class _Stream:
    """One ModelStreamInfer call: a reader, and one task for each request."""

    def __init__(
        self, service: Service, inference: Inference, writer: StreamWriter, caller: Caller
    ) -> None:
        self._service = service
        self._inference = inference
        self._writer = writer
        self._caller = caller
        self._writing = asyncio.Lock()
        self._room = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def run(self, messages: AsyncIterator[pb.ModelInferRequest]) -> None:
        """Answers all requests. A malformed one ends the stream once the earlier ones are answered.

        Raises:
            InvalidArgumentError: a message is malformed.
        """
        requests = aiter(messages)
        malformed: InvalidArgumentError | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._room.acquire()
                try:
                    message = await anext(requests, None)
                except InvalidArgumentError as error:
                    malformed = error
                    break
                if message is None:
                    break
                tasks.create_task(self._answer(message))
        if malformed is not None:
            raise malformed

    async def _answer(self, message: pb.ModelInferRequest) -> None:
        try:
            async with self._service.track_call("ModelStreamInfer", message.model_name):
                responses = self._inference.stream(decode_infer(message), self._caller)
                async with aclosing(responses):
                    async for response in responses:
                        await self._write(response)
        except ServeError as error:
            await self._fail(error, message)
        finally:
            self._room.release()

    async def _write(self, response: InferResponse) -> None:
        infer_response = await encoded(response, self._service, self._caller)
        await self._send(pb.ModelStreamInferResponse(infer_response=infer_response))

    async def _fail(self, error: ServeError, message: pb.ModelInferRequest) -> None:
        failed = InferResponse("", "", message.id, parameters={FINAL_RESPONSE: True})
        await self._send(
            pb.ModelStreamInferResponse(
                error_message=message_of(error, message), infer_response=encode_infer(failed)
            )
        )

    async def _send(self, message: pb.ModelStreamInferResponse) -> None:
        async with self._writing:
            await self._writer.write(message)
