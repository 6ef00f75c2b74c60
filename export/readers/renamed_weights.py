"""A checkpoint's weights under other names."""

from collections.abc import Iterator, Mapping

from torch import Tensor


class RenamedWeights(Mapping[str, Tensor]):
    """Weights of ``weights``, each read on access: ``names`` has the old name of each."""

    def __init__(self, weights: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
        self._weights, self._names = weights, names

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[self._names[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
