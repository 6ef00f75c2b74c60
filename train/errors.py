"""The errors of training, all of them subclasses of :class:`TrainingError`."""


class TrainingError(Exception):
    """A training cannot start or continue. ``str(error)`` is a message for the user."""


class RecipeError(TrainingError):
    """A recipe is not valid; the message lists every problem with its field."""


class DataError(TrainingError):
    """Data are missing or damaged."""


class ResumeError(TrainingError):
    """A folder has the training of another recipe, or another model."""
