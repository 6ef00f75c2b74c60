"""The errors of training; all are :class:`TrainingError`."""


class TrainingError(Exception):
    """A training that cannot start or go on. ``str(error)`` is a message for the user."""


class RecipeError(TrainingError):
    """A recipe that is not valid; the message lists every problem with its field."""


class DataError(TrainingError):
    """Data that are missing or damaged."""


class ResumeError(TrainingError):
    """A folder whose state does not belong to this recipe."""
