"""What can go wrong in an export. Every error is an :class:`ExportError` with one clear message."""


class ExportError(Exception):
    """An export that cannot be finished. ``str(error)`` is for the person who asked for it."""


class SourceError(ExportError):
    """The source is missing, of no known format, or damaged."""


class WeightsError(ExportError):
    """Weights that do not fit the configuration: all of them are named."""


class UnsupportedError(ExportError):
    """The checkpoint needs something that the model or the graphs do not have."""


class ParityError(ExportError):
    """A graph in ONNX Runtime does not agree with the eager module."""


class BundleExistsError(ExportError):
    """There is a bundle of this name and version already."""
