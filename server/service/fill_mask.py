"""The FillMask call: predicts words for the masks in texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from model.bundle import Task
from server.bounds import (
    INPUT_BYTES,
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    MAX_LOGITS,
    MAX_REPLY_VALUES,
    MAX_TEXTS,
    ruled,
    sized,
)
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.printable import quoted
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import (
    Floats,
    LengthOptions,
    check_integer,
    length_limit,
    softmax,
)
from server.service.requests import ModelRequest
from server.service.truncation import Truncation, truncation_of, usage_of
from server.service.usage import Timing, Usage
from server.text.windows import LongInput, TokenizedText

DEFAULT_TOP_K = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FillMaskRequest(ModelRequest):
    """Texts with at least one mask each, written as the model's mask token.

    ``top_k`` is the number of candidates per mask; ``None`` means :data:`DEFAULT_TOP_K`.
    ``targets`` are the words to consider, each a single token of the model; empty means the whole
    vocabulary.
    """

    inputs: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    top_k: int | None = ruled("1 … the size of the vocabulary", None)
    targets: tuple[str, ...] = sized((), max_items=MAX_ENTRIES, max_bytes=MAX_ENTRY_BYTES)
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class MaskCandidate:
    """A token for a mask. ``score`` is its probability over the whole vocabulary."""

    text: str
    token_id: int
    score: float


@dataclass(frozen=True, slots=True)
class FilledMask:
    """The mask at characters ``start`` to ``end`` of the input. Candidates are best first."""

    start: int
    end: int
    candidates: tuple[MaskCandidate, ...]


@dataclass(frozen=True, slots=True)
class MaskFilling:
    """One input's masks, in the order of the text."""

    masks: tuple[FilledMask, ...]
    usage: Usage
    truncation: Truncation


@dataclass(frozen=True, slots=True)
class FillMaskResult:
    """The result of FillMask, with outputs in the order of the inputs."""

    model: str
    outputs: tuple[MaskFilling, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return sum(2 + 3 * len(mask.candidates) for output in self.outputs for mask in output.masks)


@dataclass(frozen=True, slots=True)
class _Selection:
    """The candidates to return. ``targets`` are token ids; empty means the whole vocabulary."""

    top_k: int
    targets: tuple[int, ...]


async def fill_mask(
    request: FillMaskRequest, context: ServiceContext, caller: Caller
) -> FillMaskResult:
    """Predicts words for each mask.

    Raises:
        ServeError: an input or option is invalid, the model is unknown or does not fill masks, or
            its queue is full.
    """
    call = EncoderCall.open(request, Task.FILL_MASK, context, caller)
    model = call.model
    validation.check_texts(request.inputs, context.config.max_input_bytes)
    check_integer("top_k", request.top_k, high=model.manifest.dimensions.vocabulary_size)
    targets = await context.in_thread(
        lambda: _target_ids(request.targets, model), caller, 64 * len(request.targets)
    )
    selection = _Selection(request.top_k or DEFAULT_TOP_K, targets)
    limit = length_limit(request.length, model, LongInput.ERROR, windows=False)
    tokenized = await call.tokenize(request.inputs, limit, with_offsets=True)
    num_tokens = sum(window.num_text_tokens for text in tokenized for window in text.windows)
    positions = await call.build(
        num_tokens // 8,
        lambda: [_mask_positions(index, text, model) for index, text in enumerate(tokenized)],
    )
    num_masks = sum(map(len, positions))
    vocabulary_size = model.manifest.dimensions.vocabulary_size
    num_numbers = num_masks * vocabulary_size
    validation.check_reply("inputs", num_numbers, MAX_LOGITS, "logits of masks")
    num_candidates = num_masks * min(selection.top_k, len(targets) or vocabulary_size)
    validation.check_reply("top_k", num_candidates, MAX_REPLY_VALUES, "candidates")
    jobs = await call.build(
        8 * len(tokenized),
        lambda: [
            [call.job(text.windows[0], len(tokenized), logit_positions=masks)]
            for text, masks in zip(tokenized, positions, strict=True)
        ],
    )
    outputs = await call.run(jobs)

    def filling(index: int) -> MaskFilling:
        text, (output,) = tokenized[index], outputs[index]
        masks = tuple(
            _filled(text, position, logits, selection, model)
            for position, logits in zip(positions[index], output.vector, strict=True)
        )
        return MaskFilling(masks, usage_of(text), truncation_of(text))

    mask_cost = vocabulary_size // 32 + 4 * selection.top_k
    costs = (mask_cost * len(masks) for masks in positions)
    fillings = await context.build_each(costs, filling, caller)
    usage, timing = await call.build(0, call.finish)
    return FillMaskResult(model.manifest.name, tuple(fillings), usage, timing)


def _target_ids(words: Sequence[str], model: Model) -> tuple[int, ...]:
    """The token id of each word, without duplicates."""
    ids = [model.tokenizer.id_of(word) for word in words]
    for index, (id_, word) in enumerate(zip(ids, words, strict=True)):
        if id_ is None:
            raise InvalidArgumentError(
                f"targets[{index}]", f"{quoted(word)} is not a single token of the model"
            )
    return tuple(dict.fromkeys(id_ for id_ in ids if id_ is not None))


def _mask_positions(index: int, text: TokenizedText, model: Model) -> tuple[int, ...]:
    """The positions of input ``index``'s masks in its only window."""
    mask = model.manifest.special_tokens.mask
    (window,) = text.windows
    own = range(window.text_start, window.text_start + window.num_text_tokens)
    positions = tuple(position for position in own if window.token_ids[position] == mask)
    if not positions:
        where = "no mask left after truncation" if text.num_truncated_tokens else "no mask"
        raise InvalidArgumentError(
            f"inputs[{index}]", f"has {where}: write {model.mask_token} for the word to predict"
        )
    return positions


def _filled(
    text: TokenizedText, position: int, logits: Floats, selection: _Selection, model: Model
) -> FilledMask:
    """The best candidates for the mask at ``position``, from its ``logits [vocabulary]``."""
    window = text.windows[0]
    start, end = text.offsets[window.first_token + position - window.text_start]
    scores = softmax(logits)
    ids = np.array(selection.targets) if selection.targets else np.arange(len(scores))
    kept = scores[ids]
    count = min(selection.top_k, len(kept))
    best = np.argpartition(-kept, count - 1)[:count]
    order = best[np.argsort(-kept[best], kind="stable")]
    return FilledMask(
        start=start,
        end=end,
        candidates=tuple(
            MaskCandidate(
                text=model.tokenizer.text_of(int(ids[index])),
                token_id=int(ids[index]),
                score=float(kept[index]),
            )
            for index in order
        ),
    )
