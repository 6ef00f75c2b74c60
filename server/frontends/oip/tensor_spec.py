"""The name, type and shape of a tensor, as a model's description has them."""

from dataclasses import dataclass

ANY = -1  # any size


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name, type and shape of a tensor; :data:`ANY` stands for any size.

    An input that ``is_optional`` may be left out; an output that ``is_optional`` is returned only
    if the request names it.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] = (ANY,)
    is_optional: bool = False
