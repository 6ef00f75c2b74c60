"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute

from server.bounds import MAX_AUDIO_BYTES
from server.errors import InvalidArgumentError
from server.frontends.http.body import BodyLimits
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.event_stream import DONE, EventStream, event
from server.frontends.http.fields import flat_body, options_of
from server.frontends.http.form import MAX_UPLOAD_TEXT_BYTES, decode_upload
from server.frontends.http.multipart import MAX_HEADS_BYTES
from server.frontends.http.openai.errors import error_response
from server.frontends.http.openai.subtitles import srt, vtt
from server.frontends.http.settings import RECORDING_SECONDS
from server.printable import quoted
from server.service.transcription_request import (
    Segment,
    TranscribeRequest,
    TranscribeResult,
    TranscriptionChunk,
    TranscriptionFinish,
)

_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_STREAMED_FORMATS = ("json", "text", "verbose_json")
_GRANULARITIES = ("segment", "word")
_NAMES = {
    "audio": "file",
    "word_timestamps": "timestamp_granularities",
    "translate": "model",
}
LIMITS = BodyLimits(
    max_bytes=MAX_AUDIO_BYTES + MAX_UPLOAD_TEXT_BYTES + MAX_HEADS_BYTES,
    seconds=RECORDING_SECONDS,
)
_MILLISECONDS = 3  # decimal places of times in seconds
# Unit of ``seek``: spectrogram frames.
_FRAMES_PER_SECOND = 100


class _Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form. ``chunking_strategy`` has no effect: long recordings are cut at quiet places.

    The service's options are added by name. ``priority`` follows vLLM: lower runs earlier.
    """

    file: bytes
    model: str
    prompt: str = ""
    response_format: str = "json"
    temperature: float | None = None
    timestamp_granularities: list[str] = []
    stream: bool = False
    chunking_strategy: Literal["auto"] | None = None
    priority: int | None = None


TranscriptionBody = flat_body(
    "TranscriptionBody", _Fields, TranscribeRequest, ("translate", "word_timestamps")
)


def audio_routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=error_response)
    return [
        api.post(
            f"/v1/audio/{path}",
            _decode,
            partial(_transcribe, translate=translate),
            names=_NAMES,
            limits=LIMITS,
        )
        for path, translate in (("transcriptions", False), ("translations", True))
    ]


def _decode(data: bytes, headers: Headers) -> Any:
    lists = ("timestamp_granularities",)
    return decode_upload(data, headers, TranscriptionBody, files=("file",), lists=lists)


async def _transcribe(call: Call[Any], *, translate: bool) -> Response | EventStream:
    """Transcribes a recording, or translates it into English, as one response or a stream."""
    body = call.body
    _check_format(body)
    request = options_of(
        body,
        TranscribeRequest,
        {
            "audio": body.file,
            "translate": translate,
            # In OpenAI's API, 0 means automatic: the temperature rises if decoding fails.
            "temperature": body.temperature or None,
            "word_timestamps": "word" in body.timestamp_granularities,
            "priority": None if body.priority is None else -body.priority,
            "version": None,
        },
    )
    is_verbose = body.response_format == "verbose_json"
    if body.stream:
        chunks = await call.service.transcribe_stream(request, call.caller)
        return EventStream(_events(chunks, is_verbose=is_verbose, translate=translate))
    result = await call.service.transcribe(request, call.caller)
    encode = partial(encoded, result, body, translate=translate)
    return await call.service.build(result.num_values, encode, call.caller)


def _check_format(body: Any) -> None:
    given = body.response_format
    if given not in _FORMATS:
        raise InvalidArgumentError(
            "response_format", f"{quoted(given)} is not one of {', '.join(_FORMATS)}"
        )
    if body.stream and given not in _STREAMED_FORMATS:
        raise InvalidArgumentError("response_format", f"{given} is not streamed")
    for granularity in body.timestamp_granularities:
        if granularity not in _GRANULARITIES:
            raise InvalidArgumentError(
                "timestamp_granularities", f"{quoted(granularity)} is neither segment nor word"
            )
    if body.timestamp_granularities and given != "verbose_json":
        raise InvalidArgumentError(
            "timestamp_granularities", "needs the response_format verbose_json"
        )


def encoded(result: TranscribeResult, body: Any, *, translate: bool) -> Response:
    """Encodes the response in the format that ``body`` requests."""
    match body.response_format:
        case "text":
            return Response(f"{result.text}\n", media_type="text/plain")
        case "srt":
            return Response(srt(result.segments), media_type="text/plain")
        case "vtt":
            return Response(vtt(result.segments), media_type="text/vtt")
        case "json":
            return json_response({"text": result.text, "usage": _duration(result.finish)})
    given = body.timestamp_granularities
    verbose = {**_head(result.finish, translate=translate), "text": result.text}
    if "segment" in given or not given:
        verbose["segments"] = [_segment(*item) for item in enumerate(result.segments)]
    if "word" in given:
        verbose["words"] = _words(result.segments)
    return json_response({**verbose, "usage": _duration(result.finish)})


def _head(finish: TranscriptionFinish, *, translate: bool) -> dict[str, Any]:
    return {
        "task": "translate" if translate else "transcribe",
        "language": "english" if translate else finish.language_name,
        "duration": round(finish.duration_seconds, _MILLISECONDS),
    }


def _duration(finish: TranscriptionFinish) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(finish.duration_seconds, _MILLISECONDS)}


def _segment(index: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": index,
        "seek": round(_FRAMES_PER_SECOND * segment.start_seconds),
        "start": round(segment.start_seconds, _MILLISECONDS),
        "end": round(segment.end_seconds, _MILLISECONDS),
        "text": segment.text,
        "tokens": segment.token_ids,
        "temperature": segment.temperature,
        "avg_logprob": segment.mean_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_probability,
    }


def _words(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    return [
        {
            "word": word.text.strip(),
            "start": round(word.start_seconds, _MILLISECONDS),
            "end": round(word.end_seconds, _MILLISECONDS),
        }
        for segment in segments
        for word in segment.words
    ]


async def _events(
    chunks: AsyncGenerator[TranscriptionChunk, None], *, is_verbose: bool, translate: bool
) -> AsyncGenerator[bytes, None]:
    """Yields an event per segment; with ``is_verbose``, it includes the segment and its words."""
    text = _StrippedText()
    num_segments = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            for segment in chunk.segments:
                delta: dict[str, Any] = {
                    "type": "transcript.text.delta",
                    "delta": text.push(segment.text),
                }
                if is_verbose:
                    delta["segment"] = _segment(num_segments, segment)
                    if segment.words:
                        delta["segment"]["words"] = _words([segment])
                num_segments += 1
                yield event(delta)
            if chunk.finish is not None:
                yield event(_done(text.text, chunk.finish, is_verbose, translate))
    yield DONE


def _done(
    text: str, finish: TranscriptionFinish, is_verbose: bool, translate: bool
) -> dict[str, Any]:
    usage = finish.usage
    return {
        "type": "transcript.text.done",
        "text": text,
        **(_head(finish, translate=translate) if is_verbose else {}),
        "usage": {
            "type": "tokens",
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }


class _StrippedText:
    """Joins texts and strips white space at both ends, like the text of a whole result."""

    def __init__(self) -> None:
        self.text = ""
        self._space = ""  # white space to insert after ``text`` if more text follows

    def push(self, text: str) -> str:
        """Appends ``text``; returns the part to send now."""
        given = self._space + text
        kept = given.rstrip()
        self._space = given[len(kept) :]
        kept = kept if self.text else kept.lstrip()
        self.text += kept
        return kept
