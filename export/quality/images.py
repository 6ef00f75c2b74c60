"""The images of held-out examples."""

from collections.abc import Sequence

from export.errors import SourceError
from model.bundle import ImageSpec
from model.examples import ClassificationExample
from model.images import ImageError, Pixels, decode_image


def images_of(
    examples: Sequence[ClassificationExample], spec: ImageSpec | None, *, reads_texts: bool
) -> list[Pixels]:
    """Each example's image as pixels ``[height, width, channels]``; none for a model of texts.

    Args:
        spec: what the model makes of an image; None: it reads none.
        reads_texts: whether it reads texts, with an image each if there is a ``spec``.

    Raises:
        SourceError: an example is not what the model reads, or its image is damaged; names the
            example, counted from 1.
    """
    images: list[Pixels] = []
    wanted = " with ".join(["a text"] * reads_texts + ["an image"] * (spec is not None))
    for number, example in enumerate(examples, 1):
        if (bool(example.text), bool(example.image)) != (reads_texts, spec is not None):
            raise SourceError(f"held-out example {number}: the model reads {wanted}")
        if spec is None or not isinstance(example.image, bytes):
            continue
        try:
            images.append(decode_image(example.image, spec))
        except ImageError as error:
            raise SourceError(f"held-out example {number}: its image {error}") from error
    return images
