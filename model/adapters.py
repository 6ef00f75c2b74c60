"""LoRA adapters that a bundle serves beside its base model. Imports no torch.

They are the models ``BUNDLE:ADAPTER``. Names of bundles and adapters have no colon
(``model.bundle.NAME_PATTERN``), so that no adapter is mistaken for a bundle.
"""

from model.graph_spec import Record, Size

# The input of every graph, int32 [batch]: each row's adapter, counted from 1; 0 for none.
ADAPTERS = "adapters"
SEPARATOR = ":"
# ``BUNDLE:latest`` is the bundle, as in Ollama, unless it has an adapter of that name.
LATEST = "latest"


class AdapterSpec(Record, frozen=True, kw_only=True):
    """A LoRA adapter of a bundle.

    Attributes:
        rank: the largest rank of its changes.
        source: a pulled adapter's origin: hf:OWNER/NAME@COMMIT.
        chat_template: its own; None if it has that of the bundle.
    """

    name: str
    rank: Size
    license: str
    source: str | None = None
    chat_template: str | None = None


def adapter_label(bundle: str, adapter: str) -> str:
    """The name of the model that is ``adapter`` of ``bundle``."""
    return f"{bundle}{SEPARATOR}{adapter}"


def bundle_of(model: str) -> str:
    """The bundle that serves ``model``, which may be one of its adapters."""
    return model.partition(SEPARATOR)[0]
