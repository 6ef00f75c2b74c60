"""Arbitrary bytes as the serialized request of every method."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from tests.fuzz.service import CALLS, service
from tests.pictures import picture
from tests.recordings import tone, wav

SIZE = 512
IMAGE = picture(size=(2, 3))
_RECORDING = wav(tone(0.02, 8000), 8000)


def run(data: bytes) -> None:
    """First byte: the method. Rest: the serialized request."""
    if not data:
        return
    method, kind, models = CALLS[data[0] % len(CALLS)]
    request: Any = kind()
    try:
        request.ParseFromString(data[1:])
    except DecodeError:
        return
    if not request.model:
        request.model = models[0]
    service().call(method, request)


def seeds() -> Iterator[bytes]:
    for index, (_, _, models) in enumerate(CALLS):
        for model in models:
            yield bytes([index]) + valid(index, model)


def valid(call: int, model: str = "") -> bytes:
    """A serialized request of ``CALLS[call]`` with inputs and without options."""
    kind = CALLS[call][1]
    request: Any = kind(model=model)
    fields = kind.DESCRIPTOR.fields_by_name
    if model == "captioner":
        request.images.append(IMAGE)
    elif model in ("sounds", "ast"):
        request.audio.append(_RECORDING)
    elif method_inputs := fields.get("inputs"):
        if method_inputs.message_type is None:
            request.inputs.extend(["12, a [MASK]", "3 March 2021"])
        else:
            request.inputs.add(context="1", target="2,")
    if "questions" in fields:
        request.questions.add(question="who", context="angela merkel met barack obama")
    if "documents" in fields:
        request.query = "paris"
        request.documents.extend(["a city", "a name"])
    if "audio" in fields and not fields["audio"].is_repeated:
        request.audio = _RECORDING
    serialized: bytes = request.SerializeToString()
    return serialized
