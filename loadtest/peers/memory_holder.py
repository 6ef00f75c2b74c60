"""Takes a GPU's free memory, as another program on the same card would, and gives it back.

It speaks the protocol of ``loadtest/peers/json_lines.py``: ``{"op": "take", "device", "leave"}``
allocates all but ``leave`` bytes, ``{"op": "give_back"}`` frees them. Both reply with the bytes
that are ``held``, and those of the card that are ``free`` then.
"""

from typing import Any

import torch

from loadtest.peers.json_lines import Message, serve

# The driver allocates whole pages of this size, in bytes.
_PAGE = 2 << 20
_held: list[Any] = []


def take(message: Message) -> Message:
    """Allocates until at most ``leave`` bytes are free, a page more or less."""
    device = torch.device(message["device"])
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no CUDA device here")
    part = torch.cuda.mem_get_info(device)[0]
    while part >= _PAGE:
        wanted = torch.cuda.mem_get_info(device)[0] - message["leave"]
        part = min(part, wanted // _PAGE * _PAGE)
        if part < _PAGE:
            break
        try:
            _held.append(torch.empty(part, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            part //= 2  # what is free is not in one piece
    return _state(device)


def give_back(message: Message) -> Message:
    """Frees everything."""
    _held.clear()
    torch.cuda.empty_cache()
    return _state(torch.device(message["device"]))


def _state(device: Any) -> Message:
    free, _ = torch.cuda.mem_get_info(device)
    return {"held": sum(each.numel() for each in _held), "free": free}


if __name__ == "__main__":
    serve({"take": take, "give_back": give_back})
