"""Images as sources, for exports of models that write texts about images."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer

from export.runtime import Array
from export.sample_images import images_of
from model.bundle import PIXELS, ImageSpec, SpecialTokens
from model.images import Pixels

MAX_TARGET_TOKENS = 24


@dataclass(frozen=True, eq=False)
class ImageSource:
    """An image as a source. Its length is the number of the model's vectors for it.

    ``target``: the decoder's start token, then those of a text.
    """

    pixels: Pixels
    num_tokens: int
    target: list[int]

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def inputs(self) -> dict[str, Array]:
        """The inputs of the graph ``encode`` for this image alone."""
        return {PIXELS: self.pixels[None]}


class ImageModel(Protocol):
    """The properties of a model that its sources depend on."""

    @property
    def image(self) -> ImageSpec | None: ...
    @property
    def samples(self) -> Sequence[Pixels]: ...
    @property
    def special_tokens(self) -> SpecialTokens: ...
    @property
    def tokenizer_json(self) -> str: ...


@dataclass(frozen=True)
class ImageReader:
    """Makes sources for one model.

    Attributes:
        own: the model's own images; without any, images are generated.
        start: the decoder's start token.
        end: the token after a text.
        max_tokens: of a target.
    """

    spec: ImageSpec
    own: Sequence[Pixels]
    tokenizer: Tokenizer
    start: int
    end: list[int]
    max_tokens: int

    @classmethod
    def of(cls, model: ImageModel, max_positions: int) -> "ImageReader | None":
        """The reader for ``model``; None if it writes no texts about images."""
        spec, start = model.image, model.special_tokens.decoder_start
        if spec is None or start is None:
            return None
        tokenizer = Tokenizer.from_str(model.tokenizer_json)
        end, max_tokens = list(model.special_tokens.eos[:1]), min(MAX_TARGET_TOKENS, max_positions)
        return cls(spec, model.samples, tokenizer, start, end, max_tokens)

    def sources(self, texts: Sequence[str], count: int, seed: int) -> list[ImageSource]:
        """At most ``count`` images, generated from ``seed``; ``texts``, repeated, are targets."""
        images = images_of(self.spec, self.own, count, seed)
        targets = itertools.cycle(map(self._target, texts))
        return [
            ImageSource(image, self.spec.num_tokens, target)
            for image, target in zip(images, targets, strict=False)
        ]

    def _target(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [self.start, *ids, *self.end][: self.max_tokens]
