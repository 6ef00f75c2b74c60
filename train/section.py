"""The base of a recipe's sections."""

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass
