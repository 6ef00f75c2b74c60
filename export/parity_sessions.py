"""The graphs of a decoder or an encoder-decoder, opened together for the parity check."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from export import prompt_images
from export.decoding import DecodingInputs, DecodingRun, decode_in_graph, prefill_source
from export.runtime import DecodeSession, Session
from model.bundle import GraphSpec
from model.graph_spec import ENCODE_IMAGES


@dataclass(frozen=True)
class Sessions:
    """``encoder``: of an encoder-decoder. ``images``: encodes those of a decoder's prompts."""

    decoder: DecodeSession
    encoder: Session | None
    images: Session | None


def open_sessions(
    inputs: DecodingInputs,
    directory: Path,
    graphs: dict[str, GraphSpec],
    *,
    is_large: bool = False,
    adapter: int = 0,
) -> Sessions:
    """The graphs in ``directory``, with slots for the rows of ``inputs``.

    ``adapter``: of all rows; 0 for none.
    """
    decoder = DecodeSession(
        directory,
        graphs["decode"],
        num_slots=len(inputs.prompts),
        capacity=inputs.capacity,
        source_capacity=inputs.source_capacity,
        is_large=is_large,
        adapter=adapter,
    )
    encoder, images = (
        Session(directory, graphs[name], is_large=is_large, adapter=adapter)
        if name in graphs
        else None
        for name in ("encode", ENCODE_IMAGES)
    )
    return Sessions(decoder, encoder, images)


def run_sessions(
    sessions: Sessions,
    inputs: DecodingInputs,
    tokens: NDArray[np.int64] | None,
    chunks: int = 1,
) -> DecodingRun:
    """Encodes sources or images, and decodes: :func:`export.decoding.decode_in_graph`."""
    sessions.decoder.clear()
    if sessions.encoder is not None and inputs.sources is not None:
        prefill_source(sessions.encoder, sessions.decoder, inputs.sources)
    if sessions.images is not None:
        vectors = prompt_images.encode_in_graph(sessions.images, inputs.images)
        inputs = dataclasses.replace(inputs, vectors=vectors)
    return decode_in_graph(sessions.decoder, inputs, tokens, chunks)
