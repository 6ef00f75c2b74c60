"""From the client's arguments to the wire's requests. Checks nothing: the server does."""

from collections.abc import Sequence
from typing import TypedDict, TypeVar

from client import types
from client.types import GenerationOptions, Message
from protos.triune.v1 import inference_pb2 as wire

Texts = str | Sequence[str]
"""One text, or a batch of them."""

GenerateT = TypeVar("GenerateT", wire.GenerateRequest, wire.GenerateStreamRequest)
TranslateT = TypeVar("TranslateT", wire.TranslateRequest, wire.TranslateStreamRequest)


def texts(inputs: Texts) -> Sequence[str]:
    """A lone text is a batch of one, not a batch of its characters."""
    return [inputs] if isinstance(inputs, str) else inputs


class _Grouped(TypedDict):
    sampling: wire.SamplingOptions
    decoding: wire.DecodingOptions
    stopping: wire.StoppingOptions
    response: wire.ResponseOptions
    version: str
    priority: int


_ATTENTION_KINDS = {
    types.AttentionKind.CROSS: wire.ATTENTION_KIND_CROSS,
    types.AttentionKind.SELF: wire.ATTENTION_KIND_SELF,
}
_EARLY_STOPPING = {
    types.EarlyStopping.HEURISTIC: wire.EARLY_STOPPING_HEURISTIC,
    types.EarlyStopping.FIRST: wire.EARLY_STOPPING_FIRST,
    types.EarlyStopping.NEVER: wire.EARLY_STOPPING_NEVER,
}


def _grammar(grammar: types.Grammar | None) -> wire.Grammar | None:
    match grammar:
        case None:
            return None
        case types.JsonSchema(schema):
            return wire.Grammar(json_schema=schema)
        case types.Regex(pattern):
            return wire.Grammar(regex=pattern)
        case types.Lark(text):
            return wire.Grammar(lark=text)
        case types.Choices(values):
            return wire.Grammar(choices=wire.Choices(values=values))


def _decoding(options: GenerationOptions) -> wire.DecodingOptions:
    early_stopping = options.get("early_stopping")
    decoding = wire.DecodingOptions(
        beam_size=options.get("beam_size"),
        length_penalty=options.get("length_penalty"),
        num_hypotheses=options.get("num_hypotheses"),
        no_repeat_ngram_size=options.get("no_repeat_ngram_size"),
        target_prefix=texts(options.get("target_prefix", ())),
        alternatives=options.get("alternatives"),
        grammar=_grammar(options.get("grammar")),
        bad_words=options.get("bad_words", ()),
    )
    if early_stopping is not None:
        decoding.early_stopping = _EARLY_STOPPING[early_stopping]
    return decoding


def _attention(options: types.AttentionOptions | None) -> wire.AttentionOptions | None:
    if options is None:
        return None
    return wire.AttentionOptions(
        layers=options.layers,
        heads=options.heads,
        average=options.average,
        alignments=options.alignments,
        kind=_ATTENTION_KINDS[options.kind] if options.kind else wire.ATTENTION_KIND_UNSPECIFIED,
    )


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
            min_p=options.get("min_p"),
            typical_p=options.get("typical_p"),
            repetition_penalty=options.get("repetition_penalty"),
            presence_penalty=options.get("presence_penalty"),
            frequency_penalty=options.get("frequency_penalty"),
            logit_bias=options.get("logit_bias", {}),
        ),
        decoding=_decoding(options),
        stopping=wire.StoppingOptions(
            max_new_tokens=options.get("max_new_tokens"),
            stop_strings=options.get("stop_strings", ()),
            ignore_eos=options.get("ignore_eos"),
            min_new_tokens=options.get("min_new_tokens"),
            stop_token_ids=options.get("stop_token_ids", ()),
            max_seconds=options.get("max_seconds"),
            stop_before_deadline=options.get("stop_before_deadline"),
        ),
        response=wire.ResponseOptions(
            token_ids=options.get("token_ids"),
            logprobs=options.get("logprobs"),
            top_logprobs=options.get("top_logprobs"),
            prompt_logprobs=options.get("prompt_logprobs"),
            echo=options.get("echo"),
            attention=_attention(options.get("attention")),
        ),
        priority=options.get("priority", 0),
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
    request: type[TranslateT],
    model: str,
    inputs: Texts,
    source_language: str,
    target_language: str,
    options: GenerationOptions,
) -> TranslateT:
    """For ``Translate`` or ``TranslateStream``: ``request`` says which."""
    return request(
        model=model,
        inputs=texts(inputs),
        source_language=source_language,
        target_language=target_language,
        **_grouped(options),
    )


def score(
    model: str, pairs: Sequence[tuple[str, str]], options: types.ScoreOptions
) -> wire.ScoreRequest:
    """For ``Score``: contexts with their targets."""
    return wire.ScoreRequest(
        model=model,
        inputs=[wire.ScoreInput(context=context, target=target) for context, target in pairs],
        response=wire.ResponseOptions(
            logprobs=options.get("logprobs"), top_logprobs=options.get("top_logprobs")
        ),
        version=options.get("version", ""),
        source_language=options.get("source_language", ""),
        target_language=options.get("target_language", ""),
    )


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
