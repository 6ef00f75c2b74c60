"""The vectors of images in prompts: their computation, and the inputs of runs that take them."""

from collections.abc import Sequence

import numpy as np

from model.bundle import IMAGE_POSITIONS, IMAGE_VECTORS, PIXELS
from server.constraint import Floats
from server.engine.requests.job import PromptImage
from server.engine.requests.sequence import DecodingSequence
from server.engine.watchdog import Progress
from server.runtime.contract import Graph
from server.runtime.memory import Array


class ImageEncoder:
    """Computes the vectors of images, one image in each run. For one thread.

    Args:
        graph: the loaded ``encode_images`` graph.
        progress: receives each run that begins, for the watchdog.
    """

    def __init__(self, graph: Graph, progress: Progress) -> None:
        self._graph, self._progress = graph.bind({}), progress

    def encode(self, image: PromptImage) -> Floats:
        """Returns the vectors of an image, ``[tokens, size]``."""
        self._progress.begin()  # it tells nothing about the duration of other runs
        vectors: Floats = self._graph.run({PIXELS: image.pixels[None]})[IMAGE_VECTORS][0]
        return vectors.copy()  # the next run overwrites them


class ImageInputs:
    """Builds the inputs of the decoder's runs that replace tokens of images by their vectors.

    Args:
        size: of a vector.
    """

    def __init__(self, size: int) -> None:
        # The same arrays for all runs without images: they are bound only once.
        self.none: dict[str, Array] = {
            IMAGE_VECTORS: np.zeros((0, size), np.float32),
            IMAGE_POSITIONS: np.zeros(0, np.int32),
        }

    def of(
        self, sequences: Sequence[DecodingSequence], starts: Sequence[int], sizes: Sequence[int]
    ) -> dict[str, Array]:
        """Returns the inputs of a run.

        Args:
            sequences: of the rows.
            starts: by row: the index of the first token of the run in the sequence.
            sizes: by row: the number of tokens. Rows are padded to the largest.
        """
        length = max(sizes)
        vectors: list[Floats] = []
        positions: list[Array] = []
        for row, (sequence, start, size) in enumerate(zip(sequences, starts, sizes, strict=True)):
            if not sequence.image_vectors:
                continue
            for index, image in enumerate(sequence.job.images):
                first, stop = max(image.start, start), min(image.stop, start + size)
                if first < stop:
                    of_image = sequence.image_vectors[index]
                    vectors.append(of_image[first - image.start : stop - image.start])
                    offset = row * length - start
                    positions.append(np.arange(offset + first, offset + stop, dtype=np.int32))
        if not vectors:
            return self.none
        return {IMAGE_VECTORS: np.concatenate(vectors), IMAGE_POSITIONS: np.concatenate(positions)}
