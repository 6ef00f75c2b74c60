"""The weights of a model with a LoRA adapter, whose names for them may differ from the model's."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from torch import Tensor

from export.errors import SourceError
from export.importers.renaming import NONE
from export.readers.lora import ADAPTER_WEIGHTS_FILE, LayerChange, LoraAdapter

MAX_PARTS = 64  # of a name


class MergedWeights(Mapping[str, Tensor]):
    """The weights of a model with an adapter; each is read and computed on access.

    Args:
        adapter: the adapter.
        weights: those of the model that was adapted. Their names may lack the first parts of the
            adapter's, or have others before them: ``encoder.…`` for ``bert.encoder.…``.
        names: those of ``weights`` that the adapted model has.
        copies: names of further weights, and those in ``weights`` of which they are copies.

    Attributes:
        originals: the names in ``weights`` by the names here.
        whole: the names of the adapter's whole weights by the names here.

    Raises:
        SourceError: the adapter changes a weight that the model does not have.
    """

    def __init__(
        self,
        adapter: LoraAdapter,
        weights: Mapping[str, Tensor],
        names: Collection[str],
        copies: Mapping[str, str] = NONE,
    ) -> None:
        self._adapter, self._weights = adapter, weights
        prefix = _missing_prefix(adapter.layers, frozenset(names))
        self.originals = {**{prefix + name: name for name in names}, **copies}
        find = _Finder(self.originals)
        self.whole = {find(name) or name: own for name, own in adapter.whole.items()}
        self._layers: dict[str, LayerChange] = {}
        self._biases: dict[str, LayerChange] = {}
        for layer in adapter.layers:
            self._layers[find.existing(f"{layer.name}.weight")] = layer
            if "lora_B.bias" in layer.parts:
                self._biases[find.existing(f"{layer.name}.bias")] = layer

    def __getitem__(self, name: str) -> Tensor:
        own = self.whole.get(name)
        weight = self._weights[self.originals[name]] if own is None else self._adapter.read(own)
        if (layer := self._layers.get(name)) is not None:
            return self._adapter.changed(layer, weight)
        if (layer := self._biases.get(name)) is not None:
            return self._adapter.changed_bias(layer, weight)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter({**self.originals, **self.whole})

    def __len__(self) -> int:
        return len(self.originals.keys() | self.whole.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.originals or name in self.whole

    def original(self, name: str) -> Tensor | None:
        """The weight ``name`` without the adapter; None if the adapter brings it."""
        found = self.originals.get(name)
        return None if found is None else self._weights[found]


class _Finder:
    """Finds the name of a weight by its last parts."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._by_ending: dict[str, list[str]] = {}
        for name in names:
            for ending in _endings(name):
                self._by_ending.setdefault(ending, []).append(name)

    def __call__(self, name: str) -> str | None:
        if name in self._names:
            return name
        found = self._by_ending.get(name, [])
        return found[0] if len(found) == 1 else None

    def existing(self, name: str) -> str:
        found = self(name)
        if found is None:
            raise SourceError(
                f"{ADAPTER_WEIGHTS_FILE}: the model that the adapter changes has no weight {name}"
            )
        return found


def _missing_prefix(layers: Iterable[LayerChange], names: frozenset[str]) -> str:
    """What the adapter's names begin with, and the model's do not."""
    for layer in layers:
        name = f"{layer.name}.weight"
        for ending in (name, *_endings(name)):
            if ending in names:
                return name.removesuffix(ending)
    return ""


def _endings(name: str) -> list[str]:
    """``b.c.weight`` and ``c.weight`` of ``a.b.c.weight``; none of a name with too many parts."""
    parts = name.split(".", MAX_PARTS)
    if len(parts) > MAX_PARTS:
        return []
    return [".".join(parts[start:]) for start in range(1, len(parts) - 1)]
