"""The images of held-out examples, and what a graph says of them."""

import itertools
from collections.abc import Sequence

from export.encoding import EncoderInputs, encode_in_graph
from export.errors import SourceError
from export.runtime import Floats, Session
from model.bundle import ImageSpec
from model.examples import ClassificationExample
from model.images import ImageError, Pixels, decode_image

BATCH = 32


def images_of(
    examples: Sequence[ClassificationExample], spec: ImageSpec | None, *, reads_texts: bool
) -> list[Pixels]:
    """Each example's image as pixels ``[height, width, channels]``; none for a model of texts.

    Args:
        spec: what the model makes of an image; None: it reads none.

    Raises:
        SourceError: an example is not what the model reads, or its image is damaged; names the
            example, counted from 1.
    """
    if spec is not None and reads_texts:
        raise SourceError("held-out examples have no text beside an image, which the model reads")
    images: list[Pixels] = []
    for number, example in enumerate(examples, 1):
        if bool(example.image) != (spec is not None):
            wanted = "a text" if spec is None else "an image"
            raise SourceError(f"held-out example {number}: the model reads {wanted}")
        if spec is None or not isinstance(example.image, bytes):
            continue
        try:
            images.append(decode_image(example.image, spec))
        except ImageError as error:
            raise SourceError(f"held-out example {number}: its image {error}") from error
    return images


def encode_images(session: Session, images: Sequence[Pixels]) -> list[Floats]:
    """The first output of the graph ``encode`` for each image, such as logits ``[labels]``."""
    parts = [images[start : start + BATCH] for start in range(0, len(images), BATCH)]
    found = [encode_in_graph(session, EncoderInputs([], None, part)) for part in parts]
    return [outputs[0] for outputs in itertools.chain.from_iterable(found)]
