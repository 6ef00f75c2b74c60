"""Runs the same texts through several models or decodings, to compare them side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from client import types
from client.errors import TriuneError
from client.sync import Client
from client.word_alignment import WordAlignment, align_words

_ATTENTION = "attention"  # part of the field path when a model rejects a request for attention


@dataclass(frozen=True, slots=True)
class Decoding:
    """A named way to choose tokens, such as ``beam=4``."""

    name: str
    options: types.GenerationOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One text's output from one model with one decoding."""

    input: str
    model: str
    decoding: str
    output: str
    score: float
    """The sum of the output tokens' log-probabilities, without a length penalty."""
    num_tokens: int
    """Output tokens, the end-of-sequence token included. Beam search counts all hypotheses."""
    tokens_per_second: float
    """``num_tokens`` over ``total_seconds``."""
    total_seconds: float
    """The server's time for the request: queue, prefill and decode."""
    model_seconds_per_token: float
    """The cost: the server's prefill and decode time over ``num_tokens``. It includes the time that
    other requests spend in the same model runs, but neither queueing nor tokenization."""
    alignment: tuple[WordAlignment, ...] = ()
    """Word alignment of a translation; empty if the model returns no cross-attention."""


def _at_least_1(value: str) -> int:
    if (number := int(value)) < 1:
        raise ValueError
    return number


def _beam(value: str) -> types.GenerationOptions:
    return {"beam_size": _at_least_1(value)}


def _top_k(value: str) -> types.GenerationOptions:
    return {"temperature": 1.0, "top_k": _at_least_1(value)}


def _nucleus(value: str) -> types.GenerationOptions:
    if not 0 < (share := float(value)) <= 1:
        raise ValueError
    return {"temperature": 1.0, "top_p": share}


# By decoding name: its default value, the values that it accepts, and their conversion to options.
_DECODINGS: dict[str, tuple[str, str, Callable[[str], types.GenerationOptions]]] = {
    "beam": ("4", "an integer from 1", _beam),
    "top-k": ("50", "an integer from 1", _top_k),
    "nucleus": ("0.9", "a number in (0, 1]", _nucleus),
}
DECODINGS = ("greedy", *_DECODINGS)


def parse_decoding(text: str) -> Decoding:
    """``greedy``, ``beam[=SIZE]``, ``top-k[=K]`` or ``nucleus[=P]``.

    Raises:
        ValueError: another name, or a value that it does not accept.
    """
    name, _, value = text.partition("=")
    if text == "greedy":
        return Decoding(text, {})
    if name not in _DECODINGS:
        raise ValueError(f"decoding {text!r} is none of {', '.join(DECODINGS)}")
    default, accepted, options_of = _DECODINGS[name]
    try:
        options = options_of(value or default)
    except ValueError as error:
        raise ValueError(f"decoding {text!r}: the value of {name} is {accepted}") from error
    return Decoding(f"{name}={value or default}", options)


def compare(
    client: Client,
    models: Sequence[str],
    decodings: Sequence[Decoding],
    texts: Sequence[str],
    options: types.GenerationOptions,
    *,
    with_alignment: bool = True,
) -> list[Comparison]:
    """Runs each text through each model with each decoding, one request at a time.

    Args:
        client: calls the server.
        models: encoder-decoders translate the texts, decoders continue them or, with a chat
            template, answer them.
        decodings: override ``options``.
        texts: the inputs.
        options: the options of all requests.
        with_alignment: whether to align the words of translations. A second request fetches the
            alignment, so that it does not slow the timed one.

    Returns:
        Rows in the order of texts, then models, then decodings.

    Raises:
        TriuneError: a request failed.
    """
    described = [client.get_model(name) for name in models]
    return [
        _run(client, model, decoding, text, options, with_alignment=with_alignment)
        for text in texts
        for model in described
        for decoding in decodings
    ]


def _run(
    client: Client,
    model: types.Model,
    decoding: Decoding,
    text: str,
    options: types.GenerationOptions,
    *,
    with_alignment: bool,
) -> Comparison:
    chosen: types.GenerationOptions = {**options, **decoding.options, "logprobs": True}
    translates = "translate" in model.tasks
    if translates:
        result = client.translate(model.name, [text], **chosen)
    elif model.has_chat_template:
        result = client.generate(model.name, messages=[types.Message("user", text)], **chosen)
    else:
        result = client.generate(model.name, [text], **chosen)
    (output,) = result.outputs
    seconds, num_tokens = result.timing.total_seconds, result.usage.output_tokens
    model_seconds = result.timing.prefill_seconds + result.timing.decode_seconds
    alignments: Sequence[types.Alignment] = ()
    if translates and with_alignment:
        alignments = _alignments(client, model.name, text, output.text, chosen)
    return Comparison(
        input=text,
        model=model.name,
        decoding=decoding.name,
        output=output.text,
        score=sum(token.logprob for token in output.logprobs),
        num_tokens=num_tokens,
        tokens_per_second=num_tokens / seconds if seconds > 0 else 0.0,
        total_seconds=seconds,
        model_seconds_per_token=model_seconds / max(num_tokens, 1),
        alignment=align_words(text, output.text, alignments),
    )


def _alignments(
    client: Client, model: str, text: str, translation: str, options: types.GenerationOptions
) -> Sequence[types.Alignment]:
    """Returns a translation's token alignments; empty if the model returns no cross-attention.

    Repeats the request. ``options`` has a seed, so the translation should be the same; if it
    differs, the result is empty.
    """
    aligned: types.GenerationOptions = {
        **options,
        "attention": types.AttentionOptions(average=True, alignments=True),
    }
    try:
        result = client.translate(model, [text], **aligned)
    except TriuneError as error:
        if any(_ATTENTION in violation.field for violation in error.violations):
            return ()
        raise
    (output,) = result.outputs
    if output.attention is None or output.text != translation:
        return ()
    return output.attention.alignments
