"""The model whose quality is measured, and the outputs of its encoder."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import Encoding

from export.encoding import EncoderInputs, encode_in_graph
from export.fidelity.subject import GraphFolder, Subject
from export.runtime import Floats, Session
from model.bundle import Embedding
from model.images import Pixels

BATCH = 32
Metrics = dict[str, float]


class Model(NamedTuple):
    """A model with the graphs of one precision."""

    subject: Subject
    labels: tuple[str, ...]
    max_length_factor: float
    embedding: Embedding | None
    graphs: GraphFolder


def ids_of(encoding: Encoding) -> tuple[list[int], list[int]]:
    """The ids and segments of an encoding."""
    return encoding.ids, encoding.type_ids


def encode(
    model: Model,
    rows: Sequence[tuple[list[int], list[int]]],
    images: Sequence[Pixels] = (),
    attended: list[int] | None = None,
) -> Iterator[Floats]:
    """The first output for each row of ids and segments, each image, or each row with an image.

    ``attended``: number of each row's ids that are attended to; None: all.
    """
    session: Session = model.graphs.encoder()
    has_segments = any(spec.name == "segment_ids" for spec in session.graph.inputs)
    segments = [segments for _, segments in rows] if has_segments else None
    inputs = EncoderInputs([ids for ids, _ in rows], segments, images, attended)
    for start in range(0, len(inputs), BATCH):
        part = inputs.part(start, start + BATCH)
        yield from (outputs[0] for outputs in encode_in_graph(session, part))
