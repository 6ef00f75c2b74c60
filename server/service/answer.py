"""Answer: the parts of a text that answer a question."""

from model.bundle import Task
from protos.triune.v1 import encoding_pb2 as pb
from server.service import encoder_options as options
from server.service import validation
from server.service.caller import Caller
from server.service.context import Services
from server.service.encoding import EncoderCall, report_of, usage_of
from server.text.answers import Span, find_answers
from server.text.windows import LongInput

DEFAULT_MAX_ANSWER_TOKENS = 15
MAX_TOP_K = 1024


async def answer(
    request: pb.AnswerRequest, services: Services, caller: Caller
) -> pb.AnswerResponse:
    """Raises ``ServeError``."""
    call = EncoderCall.open(request.model, request.version, Task.ANSWER, services, caller)
    model, max_bytes = call.model, services.config.max_input_bytes
    questions = [row.question for row in request.questions]
    contexts = [row.context for row in request.questions]
    validation.check_texts(questions, max_bytes, "questions", ".question")
    validation.check_texts(contexts, max_bytes, "questions", ".context")
    top_k = options.integer("options.top_k", request.options, 1, high=MAX_TOP_K)
    longest = options.integer(
        "options.max_answer_tokens",
        request.options,
        DEFAULT_MAX_ANSWER_TOKENS,
        high=model.max_length,
    )
    limit = options.limit(request.length, model, LongInput.WINDOWS)
    readings = await call.read(questions, limit, pairs=contexts, spans=True, path="questions[{}]")
    outputs = await call.run(call.jobs(readings))

    def spans() -> list[list[Span]]:
        return [
            find_answers(
                reading,
                [output.vector for output in row],
                top_k=top_k or 1,
                max_answer_tokens=longest or DEFAULT_MAX_ANSWER_TOKENS,
                allow_none=request.options.allow_no_answer,
            )
            for reading, row in zip(readings, outputs, strict=True)
        ]

    found = await services.in_thread(spans)
    usage, timing = call.finish()
    return pb.AnswerResponse(
        model=model.manifest.name,
        outputs=[
            pb.Answers(
                spans=[
                    pb.AnswerSpan(
                        text=context[span.start : span.end],
                        score=span.score,
                        start=span.start,
                        end=span.end,
                    )
                    for span in row
                ],
                usage=usage_of(reading),
                reading=report_of(reading),
            )
            for context, row, reading in zip(contexts, found, readings, strict=True)
        ],
        usage=usage,
        timing=timing,
    )
