"""Tags texts with the request's labels, by a model that scores spans of words (GLiNER)."""

from collections.abc import Sequence

from msgspec.structs import replace

from model.bundle import SpanTagging
from server.bounds import MAX_REPLY_NUMBERS, MAX_REQUEST_BYTES, MAX_WINDOW_TOKENS, MAX_WINDOWS
from server.engine.requests.job import EncodingJob
from server.errors import InvalidArgumentError
from server.printable import quoted
from server.service import validation
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import LengthOptions, length_limit
from server.service.threads import slices_of
from server.text.label_prompts import LabelPrompts, PromptedText
from server.text.windows import LongInput, TooLongError, WindowBudget

FIELD = "candidate_labels"


def check_labels(labels: Sequence[str], spec: SpanTagging | None, name: str) -> None:
    """Checks that labels are given if, and only if, the model ``name`` has none of its own.

    Raises:
        InvalidArgumentError: they are not, or one is empty; names ``candidate_labels``.
    """
    if spec is None and labels:
        raise InvalidArgumentError(
            FIELD, f"need a model that finds any labels (GLiNER); {quoted(name)} has its own labels"
        )
    if spec is not None and not labels:
        raise InvalidArgumentError(
            FIELD, f"must not be empty: {quoted(name)} has no labels of its own"
        )
    for index, label in enumerate(labels):
        if not label.strip():
            raise InvalidArgumentError(f"{FIELD}[{index}]", "is empty")


async def tokenize(
    inputs: Sequence[str],
    labels: Sequence[str],
    spec: SpanTagging,
    length: LengthOptions,
    call: EncoderCall,
) -> list[PromptedText]:
    """Tokenizes each input after the labels, and checks that the spans are not too many.

    Raises:
        ServeError: an input is too long, there are too many windows or spans, or the queue is full.
    """
    limit = length_limit(length, call.model, LongInput.WINDOWS)
    prompts = LabelPrompts(call.model.tokenizer, spec, labels)
    budget = WindowBudget(MAX_WINDOWS, MAX_WINDOW_TOKENS)
    costs = [len(text) + sum(map(len, labels)) for text in inputs]
    if sum(costs) > MAX_REQUEST_BYTES:
        raise InvalidArgumentError(
            "inputs",
            f"are {sum(costs)} characters to tokenize, labels repeated: at most "
            f"{MAX_REQUEST_BYTES} are accepted",
        )

    def tokenize_some(start: int, stop: int) -> list[PromptedText]:
        try:
            return prompts.tokenize(inputs[start:stop], limit, budget)
        except TooLongError as error:
            raise InvalidArgumentError(f"inputs[{start + error.index}]", str(error)) from error

    parts = await call.prepare(len(inputs), slices_of(costs, tokenize_some))
    texts = [text for part in parts for text in part]
    num_words = sum(len(words) for text in texts for words in text.words)
    num_scores = num_words * spec.max_width * len(labels)
    validation.check_reply(FIELD, num_scores, MAX_REPLY_NUMBERS, "scores of spans")
    return texts


async def jobs(texts: Sequence[PromptedText], call: EncoderCall) -> list[list[EncodingJob]]:
    """Makes the jobs that encode the windows of each text."""
    plain = await call.jobs([text.tokenized for text in texts])
    return [
        [
            replace(job, word_positions=positions, label_positions=text.label_positions)
            for job, positions in zip(group, text.word_positions, strict=True)
        ]
        for group, text in zip(plain, texts, strict=True)
    ]
