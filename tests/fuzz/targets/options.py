"""Well-formed requests with random options, at and beyond their limits."""

import random
from collections.abc import Iterator
from typing import Any

from tests.fuzz.draw import Draw
from tests.fuzz.messages import fill
from tests.fuzz.service import CALLS, service
from tests.fuzz.targets.requests import IMAGE

SIZE = 256


def run(data: bytes) -> None:
    """First byte: the method. Second byte: how many fields are set."""
    draw = Draw(data)
    method, kind, models = CALLS[draw.byte() % len(CALLS)]
    request: Any = kind()
    fill(request, draw, chance=(16, 48, 96, 160)[draw.byte() & 3])
    request.model, request.version = draw.choice(models), ""
    if request.model == "captioner":
        request.images.append(IMAGE)
    elif "inputs" in kind.DESCRIPTOR.fields_by_name and _lacks_input(request):
        if method == "Score":
            request.inputs.add(context="1", target="2,")
        else:
            request.inputs.append("a [MASK] 12,")
    service().call(method, request)


def _lacks_input(request: Any) -> bool:
    names = ("inputs", "token_inputs", "messages", "pairs")
    return not any(len(getattr(request, name, ())) for name in names)


def seeds() -> Iterator[bytes]:
    rng = random.Random(0)
    for call in range(len(CALLS)):
        for amount in range(4):
            yield bytes([call, amount]) + rng.randbytes(100)
