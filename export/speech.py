"""Recordings on which exports calibrate and measure speech models.

The files in ``recordings/`` are from the test data of PocketSphinx (BSD-2-Clause): sentences of a
LibriVox reading of *Sense and Sensibility* (public domain), and names of playing cards.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from export.image_sources import ImageSource
from export.runtime import Array
from model.audio import Samples, decode_audio
from model.bundle import SAMPLES, AudioSpec, SpecialTokens, TranscriptionTokens

FOLDER = Path(__file__).with_name("recordings")
# Measured recordings and their transcripts, from the text that was read.
SENTENCES = {
    "austen-1": " And Mr. John Dashwood had then leisure to consider how much there might be"
    " prudently in his power to do for them.",
    "austen-2": " He was not an ill-disposed young man,",
    "austen-3": " unless to be rather cold-hearted and rather selfish is to be ill-disposed.",
    "austen-4": " Had he married a more amiable woman, he might have been made still more"
    " respectable than he was.",
    "austen-5": " He might even have been made amiable himself.",
}
# Calibration recordings.
CARDS = {
    "cards-1": " Ten of clubs.",
    "cards-2": " Four, queen of clubs.",
    "cards-3": " Seven of clubs.",
    "cards-4": " Five, five.",
    "cards-5": " Eight of spades, four of clubs, seven of hearts.",
}


@dataclass(frozen=True, eq=False)
class SpeechWindow:
    """A window of speech as a source. Its length is the number of the model's vectors for it.

    ``target``: the decoder's start tokens, then those of the transcript; empty for an encoder.
    """

    samples: Samples
    num_tokens: int
    target: list[int]

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def inputs(self) -> dict[str, Array]:
        """The inputs of the graph ``encode`` for this window alone."""
        return {SAMPLES: self.samples[None]}


# An encoder-decoder's source: token ids, an image or speech.
Source = list[int] | ImageSource | SpeechWindow


class SpeechModel(Protocol):
    """The properties of a model that its windows depend on."""

    @property
    def audio(self) -> AudioSpec | None: ...
    @property
    def transcription(self) -> TranscriptionTokens | None: ...
    @property
    def special_tokens(self) -> SpecialTokens: ...
    @property
    def languages(self) -> dict[str, int]: ...
    @property
    def tokenizer_json(self) -> str: ...


@dataclass(frozen=True)
class SpeechReader:
    """Makes windows for one model.

    Attributes:
        start: tokens before a transcript.
        end: tokens after a transcript.
    """

    spec: AudioSpec
    tokenizer: Tokenizer
    tokens: TranscriptionTokens
    start: list[int]
    end: list[int]

    @classmethod
    def of(cls, model: SpeechModel) -> "SpeechReader | None":
        """The reader for ``model``; None if it is not a speech model."""
        start, tokens = english_start(model), model.transcription
        if model.audio is None or tokens is None or not start:
            return None
        tokenizer = Tokenizer.from_str(model.tokenizer_json)
        return cls(model.audio, tokenizer, tokens, start, list(model.special_tokens.eos[:1]))

    def windows(self, texts: dict[str, str], count: int) -> list[SpeechWindow]:
        """``count`` windows: each recording of ``texts`` alone, then joined with each other one."""
        return [self._window(texts, chosen) for chosen in alone_and_joined(texts)[:count]]

    def _window(self, texts: dict[str, str], names: Sequence[str]) -> SpeechWindow:
        samples = joined(names, self.spec.sample_rate)
        window = np.zeros(self.spec.num_samples, np.int16)
        kept = samples[: self.spec.num_samples]
        window[: len(kept)] = kept
        text = "".join(texts[name] for name in names)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        known = [id_ for id_ in ids if id_ < self.tokens.first_timestamp]
        return SpeechWindow(window, self.spec.num_tokens, [*self.start, *known, *self.end])


def encoder_windows(spec: AudioSpec | None, names: Iterable[str], count: int) -> list[SpeechWindow]:
    """``count`` windows for an encoder: recordings alone, then joined, without padding.

    Empty for models that take no recordings.
    """
    if spec is None:
        return []
    cut = [joined(some, spec.sample_rate)[: spec.num_samples] for some in alone_and_joined(names)]
    return [SpeechWindow(samples, spec.tokens_of(len(samples)), []) for samples in cut[:count]]


def alone_and_joined(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Each name alone, then with each other one."""
    alone = list(names)
    return [*((name,) for name in alone), *itertools.permutations(alone, 2)]


def joined(names: Iterable[str], sample_rate: int) -> Samples:
    """The samples of recordings, one after the other, ``[samples]``."""
    return np.concatenate([recording(name, sample_rate) for name in names])


def english_start(model: SpeechModel) -> list[int]:
    """The first tokens of an English transcript without timestamps; empty for other models."""
    start, tokens = model.special_tokens.decoder_start, model.transcription
    if start is None or tokens is None:
        return []
    given = (model.languages.get("en"), tokens.transcribe)
    return [start, *(token for token in given if token is not None), tokens.no_timestamps]


@cache
def recording(name: str, sample_rate: int) -> Samples:
    """The samples of a recording, ``[samples]``."""
    return decode_audio((FOLDER / f"{name}.opus").read_bytes(), sample_rate)
