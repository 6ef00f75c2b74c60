"""Encodes results of Classify, Tag, FillMask, Answer, Rerank and Correct."""

from protos.triune.v1 import encoding_pb2 as pb
from server.frontends.grpc.common_codec import timing, usage
from server.service.answer import AnswerResult
from server.service.classify import ClassifyResult
from server.service.correct import CorrectResult
from server.service.fill_mask import FillMaskResult
from server.service.rerank import RerankResult
from server.service.tag import TagResult
from server.service.truncation import Truncation


def classify_response(result: ClassifyResult) -> pb.ClassifyResponse:
    """The response to Classify."""
    return pb.ClassifyResponse(
        model=result.model,
        outputs=[
            pb.Classification(
                labels=[pb.LabelScore(label=x.label, score=x.score) for x in output.labels],
                usage=usage(output.usage),
                reading=reading(output.truncation),
            )
            for output in result.outputs
        ],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def tag_response(result: TagResult) -> pb.TagResponse:
    """The response to Tag."""
    return pb.TagResponse(
        model=result.model,
        outputs=[
            pb.Tagging(
                entities=[
                    pb.Entity(label=x.label, score=x.score, start=x.start, end=x.end, text=x.text)
                    for x in output.entities
                ],
                usage=usage(output.usage),
                reading=reading(output.truncation),
            )
            for output in result.outputs
        ],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def fill_mask_response(result: FillMaskResult) -> pb.FillMaskResponse:
    """The response to FillMask."""
    return pb.FillMaskResponse(
        model=result.model,
        outputs=[
            pb.MaskFilling(
                masks=[
                    pb.FilledMask(
                        start=mask.start,
                        end=mask.end,
                        candidates=[
                            pb.MaskCandidate(text=x.text, token_id=x.token_id, score=x.score)
                            for x in mask.candidates
                        ],
                    )
                    for mask in output.masks
                ],
                usage=usage(output.usage),
                reading=reading(output.truncation),
            )
            for output in result.outputs
        ],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def answer_response(result: AnswerResult) -> pb.AnswerResponse:
    """The response to Answer."""
    return pb.AnswerResponse(
        model=result.model,
        outputs=[
            pb.Answers(
                spans=[
                    pb.AnswerSpan(text=x.text, score=x.score, start=x.start, end=x.end)
                    for x in output.spans
                ],
                usage=usage(output.usage),
                reading=reading(output.truncation),
            )
            for output in result.outputs
        ],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def rerank_response(result: RerankResult) -> pb.RerankResponse:
    """The response to Rerank."""
    return pb.RerankResponse(
        model=result.model,
        outputs=[
            pb.RankedDocument(
                index=output.index,
                score=output.score,
                document=output.document,
                reading=reading(output.truncation),
            )
            for output in result.outputs
        ],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def correct_response(result: CorrectResult) -> pb.CorrectResponse:
    """The response to Correct."""
    return pb.CorrectResponse(
        model=result.model,
        outputs=[
            pb.Correction(
                text=output.text,
                edits=[
                    pb.TextEdit(
                        start=x.start,
                        end=x.end,
                        original=x.original,
                        replacement=x.replacement,
                        score=x.score,
                    )
                    for x in output.edits
                ],
                iterations=output.iterations,
                is_final=output.is_final,
                usage=usage(output.usage),
                reading=reading(output.truncation),
            )
            for output in result.outputs
        ],
        usage=usage(result.usage),
        timing=timing(result.timing),
    )


def reading(truncation: Truncation) -> pb.Reading:
    """How an input was shortened or split; the wire calls it ``Reading``."""
    return pb.Reading(truncated_tokens=truncation.truncated_tokens, windows=truncation.windows)
