"""The images of held-out examples."""

from collections.abc import Sequence

from export.errors import SourceError
from model.bundle import ImageSpec
from model.examples import ClassificationExample, TextExample
from model.images import ImageError, Pixels, decode_image


def images_of(
    examples: Sequence[ClassificationExample | TextExample],
    spec: ImageSpec | None,
    *,
    has_texts: bool,
) -> list[Pixels]:
    """Each example's image as pixels ``[height, width, channels]``; none for a model of texts.

    Args:
        spec: the preprocessing of the model's images; None: it reads no images.
        has_texts: whether it reads or writes texts; with a ``spec``, each text has an image.

    Raises:
        SourceError: an example does not fit the model, or its image is damaged; the message has the
            example's number, from 1.
    """
    images: list[Pixels] = []
    wanted = " with ".join(["a text"] * has_texts + ["an image"] * (spec is not None))
    for number, example in enumerate(examples, 1):
        if (bool(example.text), bool(example.image)) != (has_texts, spec is not None):
            raise SourceError(f"held-out example {number}: the model needs {wanted}")
        if spec is None or not isinstance(example.image, bytes):
            continue
        try:
            images.append(decode_image(example.image, spec))
        except ImageError as error:
            raise SourceError(f"held-out example {number}: its image {error}") from error
    return images
