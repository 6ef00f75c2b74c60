"""From what was generated to the wire's messages."""

from collections.abc import Mapping, Sequence

from protos.triune.v1 import common_pb2
from protos.triune.v1 import inference_pb2 as pb
from server.engine.decoding.sampling import TokenLogprob
from server.models.registry import Model
from server.service.generation import TextChunk, total_usage
from server.service.prepare import PreparedRequest


def output(
    prepared: PreparedRequest, hypotheses: Mapping[int, Sequence[TextChunk]]
) -> pb.GeneratedOutput:
    """One input's output, from the pieces of each of its hypotheses."""
    all_of_them = [hypothesis(prepared, hypotheses[number]) for number in sorted(hypotheses)]
    first, pieces = all_of_them[0], hypotheses[0]
    usages = [
        piece.finish.usage
        for numbered in hypotheses.values()
        for piece in numbered
        if piece.finish is not None
    ]
    return pb.GeneratedOutput(
        text=first.text,
        token_ids=first.token_ids,
        finish_reason=first.finish_reason,
        usage=total_usage(usages),
        score=first.score if first.HasField("score") else None,
        logprobs=first.logprobs,
        prompt_logprobs=prompt_logprobs(prepared, pieces[-1]),
        attention=None if pieces[-1].finish is None else pieces[-1].finish.attention,
        hypotheses=all_of_them if prepared.num_hypotheses > 1 else (),
    )


def hypothesis(prepared: PreparedRequest, pieces: Sequence[TextChunk]) -> pb.Hypothesis:
    """One text, from its pieces."""
    finish = pieces[-1].finish
    return pb.Hypothesis(
        text="".join(piece.text for piece in pieces),
        token_ids=[id_ for piece in pieces for id_ in piece.token_ids if prepared.wants_token_ids],
        finish_reason=common_pb2.FINISH_REASON_UNSPECIFIED if finish is None else finish.reason,
        score=None if finish is None else finish.score,
        logprobs=[
            row for piece in pieces for row in logprobs(prepared, piece.token_ids, piece.logprobs)
        ],
    )


def logprobs(
    prepared: PreparedRequest, token_ids: Sequence[int], values: Sequence[TokenLogprob]
) -> list[pb.TokenLogprob]:
    """Of the last tokens among ``token_ids``: those that were generated."""
    generated = token_ids[len(token_ids) - len(values) :]
    return token_logprobs(prepared.model, generated, values)


def prompt_logprobs(prepared: PreparedRequest, piece: TextChunk) -> list[pb.TokenLogprob]:
    """Of the prompt's tokens but the first, on an input's first hypothesis."""
    if piece.finish is None or piece.hypothesis or not piece.finish.prompt_logprobs:
        return []
    prompt = prepared.jobs[piece.index].prompt
    return token_logprobs(prepared.model, prompt[1:], piece.finish.prompt_logprobs)


def token_logprobs(
    model: Model, token_ids: Sequence[int], values: Sequence[TokenLogprob]
) -> list[pb.TokenLogprob]:
    """One message for each token."""
    spellings = model.tokenizer.tokens(token_ids)
    return [
        pb.TokenLogprob(
            token_id=id_,
            token=spelling,
            logprob=value.logprob,
            top=[
                pb.TokenLogprob(token_id=other, token=name, logprob=logprob)
                for (other, logprob), name in zip(
                    value.top,
                    model.tokenizer.tokens([other for other, _ in value.top]),
                    strict=True,
                )
            ],
        )
        for id_, spelling, value in zip(token_ids, spellings, values, strict=True)
    ]
