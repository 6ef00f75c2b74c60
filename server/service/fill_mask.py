"""FillMask: words for the masks of texts."""

from collections.abc import Sequence

import numpy as np

from model.bundle import Task
from protos.triune.v1 import encoding_pb2 as pb
from server.engine.requests.sequence import Floats
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service import encoder_options as options
from server.service import validation
from server.service.caller import Caller
from server.service.context import Services
from server.service.encoding import EncoderCall, report_of, usage_of
from server.text.windows import LongInput, TokenizedText

DEFAULT_TOP_K = 5
MAX_TARGETS = 1024


async def fill_mask(
    request: pb.FillMaskRequest, services: Services, caller: Caller
) -> pb.FillMaskResponse:
    """Raises ``ServeError``."""
    call = EncoderCall.open(request.model, request.version, Task.FILL_MASK, services, caller)
    model = call.model
    validation.check_texts(request.inputs, services.config.max_input_bytes)
    size = model.manifest.dimensions.vocabulary_size
    top_k = options.integer("options.top_k", request.options, DEFAULT_TOP_K, high=size)
    targets = _targets(request.options.targets, model)
    limit = options.limit(request.length, model, LongInput.ERROR, windows=False)
    readings = await call.read(request.inputs, limit, spans=True)
    positions = [_positions(index, reading, model) for index, reading in enumerate(readings)]
    outputs = await call.run(
        [
            [call.job(reading.windows[0], logit_positions=row)]
            for reading, row in zip(readings, positions, strict=True)
        ]
    )

    def masks() -> list[list[pb.FilledMask]]:
        return [
            [
                _filled(reading, position, logits, targets, top_k, model)
                for position, logits in zip(row, output.vector, strict=True)
            ]
            for reading, row, (output,) in zip(readings, positions, outputs, strict=True)
        ]

    found = await services.in_thread(masks)
    usage, timing = call.finish()
    return pb.FillMaskResponse(
        model=model.manifest.name,
        outputs=[
            pb.MaskFilling(masks=row, usage=usage_of(reading), reading=report_of(reading))
            for row, reading in zip(found, readings, strict=True)
        ],
        usage=usage,
        timing=timing,
    )


def _targets(words: Sequence[str], model: Model) -> list[int]:
    """Token ids, each once; empty for the whole vocabulary."""
    if len(words) > MAX_TARGETS:
        raise InvalidArgumentError("options.targets", f"{len(words)} given, at most {MAX_TARGETS}")
    ids = [model.tokenizer.id_of(word) for word in words]
    for index, (id_, word) in enumerate(zip(ids, words, strict=True)):
        if id_ is None:
            raise InvalidArgumentError(
                f"options.targets[{index}]", f"{word!r} is not one token of the model's"
            )
    return list(dict.fromkeys(id_ for id_ in ids if id_ is not None))


def _positions(index: int, reading: TokenizedText, model: Model) -> tuple[int, ...]:
    """Where the masks stand among the tokens that the model reads."""
    mask = model.manifest.special_tokens.mask
    (window,) = reading.windows
    own = range(window.start, window.start + window.size)
    positions = tuple(position for position in own if window.token_ids[position] == mask)
    if not positions:
        where = "no mask in what was read of it" if reading.num_truncated else "no mask"
        raise InvalidArgumentError(
            f"inputs[{index}]", f"has {where}: write {model.mask_token} for a word to find"
        )
    return positions


def _filled(
    reading: TokenizedText,
    position: int,
    logits: Floats,
    targets: list[int],
    top_k: int | None,
    model: Model,
) -> pb.FilledMask:
    window = reading.windows[0]
    start, end = reading.spans[window.first + position - window.start]
    scores = options.softmax(logits)
    candidates = np.array(targets) if targets else np.arange(len(scores))
    kept = scores[candidates]
    count = min(top_k or DEFAULT_TOP_K, len(kept))
    best = np.argpartition(-kept, count - 1)[:count]
    order = best[np.argsort(-kept[best], kind="stable")]
    return pb.FilledMask(
        start=start,
        end=end,
        candidates=[
            pb.MaskCandidate(
                text=model.tokenizer.text_of(int(candidates[row])),
                token_id=int(candidates[row]),
                score=kept[row],
            )
            for row in order
        ],
    )
