"""From the client's arguments to the wire's requests. Checks nothing: the server does."""

from collections.abc import Sequence
from typing import TypedDict, TypeVar

from client.types import GenerationOptions, Message
from protos.triune.v1 import inference_pb2 as wire

Texts = str | Sequence[str]
"""One text, or a batch of them."""

GenerateT = TypeVar("GenerateT", wire.GenerateRequest, wire.GenerateStreamRequest)
TranslateT = TypeVar("TranslateT", wire.TranslateRequest, wire.TranslateStreamRequest)
PlainT = TypeVar("PlainT", wire.EmbedRequest, wire.ClassifyRequest)


def texts(inputs: Texts) -> Sequence[str]:
    """A lone text is a batch of one, not a batch of its characters."""
    return [inputs] if isinstance(inputs, str) else inputs


class _Grouped(TypedDict):
    sampling: wire.SamplingOptions
    stopping: wire.StoppingOptions
    response: wire.ResponseOptions
    version: str


def _grouped(options: GenerationOptions) -> _Grouped:
    """Options as the wire groups them; ``None`` leaves a field unset.

    Raises ``TypeError`` for an option that does not exist: a typing error would be lost.
    """
    if unknown := options.keys() - GenerationOptions.__annotations__.keys():
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    return _Grouped(
        sampling=wire.SamplingOptions(
            temperature=options.get("temperature"),
            top_k=options.get("top_k"),
            top_p=options.get("top_p"),
            seed=options.get("seed"),
        ),
        stopping=wire.StoppingOptions(
            max_new_tokens=options.get("max_new_tokens"),
            stop_strings=options.get("stop_strings", ()),
            ignore_eos=options.get("ignore_eos"),
        ),
        response=wire.ResponseOptions(token_ids=options.get("token_ids")),
        version=options.get("version", ""),
    )


def generate(
    request: type[GenerateT],
    model: str,
    inputs: Texts,
    *,
    token_inputs: Sequence[Sequence[int]],
    messages: Sequence[Message],
    options: GenerationOptions,
) -> GenerateT:
    """For ``Generate`` or ``GenerateStream``: ``request`` says which."""
    return request(
        model=model,
        inputs=texts(inputs),
        token_inputs=[wire.TokenIds(ids=ids) for ids in token_inputs],
        messages=[wire.ChatMessage(role=turn.role, content=turn.content) for turn in messages],
        **_grouped(options),
    )


def translate(
    request: type[TranslateT], model: str, inputs: Texts, options: GenerationOptions
) -> TranslateT:
    """For ``Translate`` or ``TranslateStream``: ``request`` says which."""
    return request(model=model, inputs=texts(inputs), **_grouped(options))


def plain(request: type[PlainT], model: str, inputs: Texts, version: str) -> PlainT:
    """For the calls that have no options of their own."""
    return request(model=model, inputs=texts(inputs), version=version)


def tokenize(
    model: str, inputs: Texts, without_special_tokens: bool, version: str
) -> wire.TokenizeRequest:
    """For ``Tokenize``."""
    return wire.TokenizeRequest(
        model=model,
        inputs=texts(inputs),
        without_special_tokens=without_special_tokens,
        version=version,
    )
