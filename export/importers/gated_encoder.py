"""Encoders with a decoder's layers: EuroBERT, ESM Cambrian, decoders without their head."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from export.importers.encoders import Body
from export.importers.gated_decoder import gated_table
from export.importers.renaming import Rename
from model.config import ModelConfig


def gated_encoder(base: str, model: ModelConfig, **table: Any) -> Body:
    """The stack of ``model`` as an encoder; its checkpoint uses Llama's weight names.

    Args:
        base: the prefix of the weights in classes with a head.
        table: further arguments of :func:`gated_table`.
    """
    if model.decoder is None:
        raise ValueError("a gated encoder has the stack of a decoder")
    return Body(
        base=base,
        hidden_size=model.hidden_size,
        position=model.position,
        embedding=model.embedding,
        encoder=model.decoder,
        table=tuple(
            replace(entry, sources=tuple(name.removeprefix("model.") for name in entry.sources))
            for entry in encoder_table(gated_table(model, **table))
        ),
    )


def encoder_table(table: Iterable[Rename]) -> list[Rename]:
    """A decoder's ``table`` as an encoder's, without the head."""
    return [
        replace(entry, target=entry.target.replace("decoder.", "encoder.", 1))
        for entry in table
        if not entry.target.startswith("head.")
    ]
