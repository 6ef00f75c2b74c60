"""Failures of a candidate. They become reasons in the report and never end the run."""


class WorkerError(Exception):
    """A process that cannot be started, ends, hangs or reports an error. Its text is the reason."""


class InvalidResultError(Exception):
    """A result that does not contain what was requested, such as too few tokens."""


class MalformedReplyError(Exception):
    """A server's reply that cannot be parsed."""
