"""Submits further jobs of calls whose first jobs the engine has accepted."""

import asyncio
from dataclasses import dataclass

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


@dataclass(slots=True)
class Submissions:
    """Submits the jobs of one call: its first at once, if the engine's queue has room.

    ``model`` is the model's key, and ``client`` the one to charge.
    """

    context: ServiceContext
    model: str
    client: str | None
    _is_accepted: bool = False

    async def submit(self, job: Job) -> JobHandle:
        """Submits a job. Jobs after the first wait while the queue is full.

        Raises:
            ServeError: see :func:`submit_follow_up`; of the first job, also that the queue is full.
        """
        if self._is_accepted:
            return await submit_follow_up(self.context, self.model, job, self.client)
        (handle,) = self.context.engine.submit(self.model, [job], self.client)
        self._is_accepted = True
        return handle
