"""The errors of an export, all of them subclasses of :class:`ExportError`."""


class ExportError(Exception):
    """An export cannot be completed. ``str(error)`` is a message for the user."""


class SourceError(ExportError):
    """The source is missing, damaged, or in an unknown format."""


class WeightsError(ExportError):
    """Weights do not fit the configuration; the message names all of them."""


class UnsupportedError(ExportError):
    """The checkpoint needs a feature that the model or the graphs do not support."""


class ParityError(ExportError):
    """A graph in ONNX Runtime does not compute what the eager module computes."""


class FidelityError(ExportError):
    """The bundle's precision loses more than its limits allow; the message names all of them."""


class BundleExistsError(ExportError):
    """A bundle of this name and version exists already."""
