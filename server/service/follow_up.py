"""Submits further jobs of calls whose first jobs the engine has accepted."""

import asyncio

from server.engine.requests.job import Job
from server.engine.requests.job_handle import JobHandle
from server.errors import Limit, OverloadedError
from server.service.context import ServiceContext
from server.service.threads import check_deadline


async def submit_follow_up(
    context: ServiceContext, model: str, job: Job, client: str | None
) -> JobHandle:
    """Submits a job. Waits while the engine's queue is full, so that no earlier work is lost.

    Args:
        context: the server's components.
        model: the key of the model.
        job: the job.
        client: the client to charge for the tokens; ``None`` charges nobody.

    Raises:
        ServeError: the deadline passed, the queue is too long for it, or the engine is stopping.
    """
    while True:
        try:
            (handle,) = context.engine.submit(model, [job], client)
        except OverloadedError as error:
            if error.limit == Limit.DEADLINE:
                raise
            await asyncio.sleep(error.retry_seconds)
            check_deadline(job.deadline)
        else:
            return handle
