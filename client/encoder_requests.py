"""From arguments to the wire's requests, of the calls to encoders. The server checks them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from client import encoder_types as types
from client.requests import Texts, texts
from protos.triune.v1 import encoding_pb2 as wire

_FITS = {
    None: wire.LONG_INPUT_UNSPECIFIED,
    types.LongInput.ERROR: wire.LONG_INPUT_ERROR,
    types.LongInput.TRUNCATE_RIGHT: wire.LONG_INPUT_TRUNCATE_RIGHT,
    types.LongInput.TRUNCATE_LEFT: wire.LONG_INPUT_TRUNCATE_LEFT,
    types.LongInput.WINDOWS: wire.LONG_INPUT_WINDOWS,
}
_FORMATS = {
    types.EncodingFormat.FLOAT: wire.ENCODING_FORMAT_FLOAT,
    types.EncodingFormat.FLOAT32_BYTES: wire.ENCODING_FORMAT_FLOAT32_BYTES,
    types.EncodingFormat.FLOAT16_BYTES: wire.ENCODING_FORMAT_FLOAT16_BYTES,
}
_AGGREGATIONS = {
    None: wire.AGGREGATION_UNSPECIFIED,
    types.Aggregation.NONE: wire.AGGREGATION_NONE,
    types.Aggregation.SIMPLE: wire.AGGREGATION_SIMPLE,
    types.Aggregation.FIRST: wire.AGGREGATION_FIRST,
    types.Aggregation.AVERAGE: wire.AGGREGATION_AVERAGE,
    types.Aggregation.MAX: wire.AGGREGATION_MAX,
}
_SCORES = {
    None: wire.SCORE_FUNCTION_UNSPECIFIED,
    types.ScoreFunction.SOFTMAX: wire.SCORE_FUNCTION_SOFTMAX,
    types.ScoreFunction.SIGMOID: wire.SCORE_FUNCTION_SIGMOID,
    types.ScoreFunction.IDENTITY: wire.SCORE_FUNCTION_IDENTITY,
}
_Options = TypeVar("_Options", bound=Mapping[str, Any])


def _checked(options: _Options, kind: type[_Options]) -> _Options:
    """Raises ``TypeError`` for an option that does not exist: a typing error would be lost."""
    if unknown := options.keys() - kind.__annotations__.keys():
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    return options


def _length(options: types.LengthOptions) -> wire.LengthOptions:
    return wire.LengthOptions(
        long_input=_FITS[options.get("long_input")],
        max_tokens=options.get("max_tokens"),
        stride=options.get("stride"),
    )


def _embed_options(options: types.EmbedOptions) -> wire.EmbedOptions:
    form = options.get("encoding_format", types.EncodingFormat.FLOAT32_BYTES)
    return wire.EmbedOptions(
        encoding_format=_FORMATS[form],
        dimensions=options.get("dimensions"),
        normalize=options.get("normalize"),
        prompt_name=options.get("prompt_name"),
        prompt=options.get("prompt"),
        token_embeddings=options.get("token_embeddings"),
    )


def embed(model: str, inputs: Texts, options: types.EmbedOptions) -> wire.EmbedRequest:
    """For ``Embed``."""
    _checked(options, types.EmbedOptions)
    return wire.EmbedRequest(
        model=model,
        inputs=texts(inputs),
        version=options.get("version", ""),
        options=_embed_options(options),
        length=_length(options),
    )


def embed_part(
    id_: int, model: str, inputs: Texts, options: types.EmbedOptions
) -> wire.EmbedStreamRequest:
    """For ``EmbedStream``: the options are in the first part, numbered 0."""
    part = wire.EmbedStreamRequest(id=id_, inputs=texts(inputs))
    if id_ == 0:
        whole = embed(model, (), options)
        part.model, part.version = whole.model, whole.version
        part.options.CopyFrom(whole.options)
        part.length.CopyFrom(whole.length)
    return part


def classify(
    model: str,
    inputs: Texts,
    pairs: Sequence[tuple[str, str]],
    options: types.ClassifyOptions,
) -> wire.ClassifyRequest:
    """For ``Classify``."""
    _checked(options, types.ClassifyOptions)
    return wire.ClassifyRequest(
        model=model,
        inputs=texts(inputs),
        pairs=[wire.TextPair(text=text, text_pair=pair) for text, pair in pairs],
        version=options.get("version", ""),
        options=wire.ClassifyOptions(
            top_k=options.get("top_k"), score_function=_SCORES[options.get("score_function")]
        ),
        length=_length(options),
    )


def tag(model: str, inputs: Texts, options: types.TagOptions) -> wire.TagRequest:
    """For ``Tag``."""
    _checked(options, types.TagOptions)
    return wire.TagRequest(
        model=model,
        inputs=texts(inputs),
        version=options.get("version", ""),
        options=wire.TagOptions(
            aggregation=_AGGREGATIONS[options.get("aggregation")],
            ignored_labels=options.get("ignored_labels", ()),
            min_score=options.get("min_score"),
        ),
        length=_length(options),
    )


def fill_mask(model: str, inputs: Texts, options: types.FillMaskOptions) -> wire.FillMaskRequest:
    """For ``FillMask``."""
    _checked(options, types.FillMaskOptions)
    return wire.FillMaskRequest(
        model=model,
        inputs=texts(inputs),
        version=options.get("version", ""),
        options=wire.FillMaskOptions(
            top_k=options.get("top_k"), targets=options.get("targets", ())
        ),
        length=_length(options),
    )


def answer(
    model: str, questions: Sequence[types.Question], options: types.AnswerOptions
) -> wire.AnswerRequest:
    """For ``Answer``."""
    _checked(options, types.AnswerOptions)
    return wire.AnswerRequest(
        model=model,
        questions=[wire.Question(question=q.question, context=q.context) for q in questions],
        version=options.get("version", ""),
        options=wire.AnswerOptions(
            top_k=options.get("top_k"),
            max_answer_tokens=options.get("max_answer_tokens"),
            allow_no_answer=options.get("allow_no_answer"),
        ),
        length=_length(options),
    )


def rerank(
    model: str, query: str, documents: Sequence[str], options: types.RerankOptions
) -> wire.RerankRequest:
    """For ``Rerank``."""
    _checked(options, types.RerankOptions)
    return wire.RerankRequest(
        model=model,
        query=query,
        documents=documents,
        version=options.get("version", ""),
        options=wire.RerankOptions(
            top_n=options.get("top_n"),
            return_documents=options.get("return_documents"),
            score_function=_SCORES[options.get("score_function")],
            query_prompt_name=options.get("query_prompt_name"),
            document_prompt_name=options.get("document_prompt_name"),
        ),
        length=_length(options),
    )
