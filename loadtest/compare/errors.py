"""What can go wrong with a contestant: a reason for the report, never the end of the run."""


class WorkerError(Exception):
    """A contestant that does not do what is asked. ``str(error)`` is the reason."""


class BadAnswerError(Exception):
    """An answer that does not hold what was asked for."""


class NotUnderstoodError(Exception):
    """What a server answered is no answer."""
