"""The measured model, from a checkpoint or from a bundle, and its tokenized inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jinja2 import Template
from tokenizers import Encoding, Tokenizer

from export.chat import compile_chat_template, render_message
from export.checkpoint import Checkpoint
from export.fidelity.texts import PROMPTS, sentences
from export.image_sources import ImageReader
from export.runtime import DecodeSession, Session
from export.sample_images import images_of
from export.signatures import Signatures
from export.speech import (
    SENTENCES,
    Source,
    SpeechReader,
    SpeechWindow,
    encoder_windows,
    english_start,
)
from model.bundle import (
    TOKENIZER_FILE,
    AudioSpec,
    CtcTokens,
    Embedding,
    ImageSpec,
    Manifest,
    PairTemplate,
    ScoreFunction,
    SpanTagging,
    SpecialTokens,
    Task,
    TranscriptionTokens,
)
from model.chat_template import named_tokens
from model.config import Kind
from model.conversation import conversation_parts
from model.examples import ChatTurn
from model.images import Pixels

# Parameters times tokens to compute in both precisions: about half a minute on two cores.
BUDGET = 2.2e11
SMALL_PARAMETERS = 2_000_000  # a test's model
MAX_PROMPT_TOKENS = 96
NUM_IMAGES, MIN_IMAGES, IMAGE_SEED = 64, 16, 20201022
MAX_WINDOWS, MIN_WINDOWS = 25, 8  # windows of speech


@dataclass(frozen=True)
class GraphFolder:
    """Graphs of one precision, and the folder with their files."""

    directory: Path
    graphs: Signatures
    is_large: bool = False

    def encoder(self) -> Session:
        """A session of the graph ``encode``."""
        return Session(self.directory, self.graphs["encode"], is_large=self.is_large)

    def decoder(self, num_slots: int, capacity: int, source_capacity: int) -> DecodeSession:
        """A session of the graph ``decode`` with its states."""
        return DecodeSession(
            self.directory,
            self.graphs["decode"],
            num_slots=num_slots,
            capacity=capacity,
            source_capacity=source_capacity,
            is_large=self.is_large,
        )


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The properties of a model that the measurement needs besides its graphs."""

    kind: Kind
    tasks: tuple[Task, ...]
    tokenizer_json: str
    special_tokens: SpecialTokens
    vocabulary_size: int
    max_positions: int
    num_parameters: int
    chat_template: str | None
    score_function: ScoreFunction | None
    embedding: Embedding | None
    pair_template: PairTemplate | None
    span_tagging: SpanTagging | None
    source_language: str | None
    languages: dict[str, int]
    image: ImageSpec | None
    samples: Sequence[Pixels]
    audio: AudioSpec | None
    transcription: TranscriptionTokens | None
    ctc: CtcTokens | None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Subject":
        """The model of ``checkpoint``."""
        positions = checkpoint.config.position.max_positions
        return cls(
            kind=checkpoint.config.kind,
            tasks=checkpoint.tasks,
            tokenizer_json=checkpoint.tokenizer_json,
            special_tokens=checkpoint.special_tokens,
            vocabulary_size=checkpoint.config.vocabulary_size,
            max_positions=min(positions, checkpoint.max_input_tokens or positions),
            num_parameters=sum(math.prod(w.shape) for w in checkpoint.weights.values()),
            chat_template=checkpoint.chat_template,
            score_function=checkpoint.score_function,
            embedding=checkpoint.embedding,
            pair_template=checkpoint.pair_template,
            span_tagging=checkpoint.span_tagging,
            source_language=checkpoint.source_language,
            languages=checkpoint.languages,
            image=checkpoint.image,
            samples=checkpoint.samples,
            audio=checkpoint.audio,
            transcription=checkpoint.transcription,
            ctc=checkpoint.ctc,
        )

    @classmethod
    def of_bundle(cls, directory: Path, manifest: Manifest) -> "Subject":
        """The model of the bundle in ``directory``."""
        positions = manifest.dimensions.max_positions
        return cls(
            kind=manifest.kind,
            tasks=manifest.tasks,
            tokenizer_json=(directory / TOKENIZER_FILE).read_text("utf-8"),
            special_tokens=manifest.special_tokens,
            vocabulary_size=manifest.dimensions.vocabulary_size,
            max_positions=min(positions, manifest.max_input_tokens or positions),
            num_parameters=manifest.dimensions.num_parameters,
            chat_template=manifest.chat_template,
            score_function=manifest.score_function,
            embedding=manifest.embedding,
            pair_template=manifest.pair_template,
            span_tagging=manifest.span_tagging or None,
            source_language=manifest.source_language,
            languages=manifest.languages,
            image=manifest.image,
            samples=(),
            audio=manifest.audio,
            transcription=manifest.transcription,
            ctc=manifest.ctc or None,
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self.tokenizer_json)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @property
    def max_rows(self) -> int:
        """Number of prompts or sources: 40, 8 for a tiny model, at least 4 for a large one."""
        if self.num_parameters < SMALL_PARAMETERS:
            return 8
        return int(min(40, max(4, BUDGET / self.num_parameters / 40)))

    @property
    def max_new_tokens(self) -> int:
        """Number of tokens per answer: 40, 16 for a tiny model, at least 8 for a large one."""
        if self.num_parameters < SMALL_PARAMETERS:
            return 16
        return int(min(40, max(8, BUDGET / self.num_parameters / self.max_rows)))

    @property
    def max_texts(self) -> int:
        """Number of texts for an encoder: 150, 24 for a tiny model, at least 32 for a large one."""
        if self.num_parameters < SMALL_PARAMETERS:
            return 24
        return int(min(150, max(32, BUDGET / self.num_parameters / 20)))

    @property
    def images(self) -> Sequence[Pixels]:
        """Images to compare: 64, at least 16 for a large model; none if it reads only texts."""
        if self.image is None:
            return ()
        tokens = self.num_parameters * self.image.num_tokens
        count = int(min(NUM_IMAGES, max(MIN_IMAGES, BUDGET / tokens)))
        return images_of(self.image, self.samples, count, IMAGE_SEED)

    @property
    def speech(self) -> Sequence[SpeechWindow]:
        """Windows for an encoder of speech: as many as for an encoder-decoder."""
        count = 0 if self.audio is None else self._num_windows(self.audio)
        return encoder_windows(self.audio, SENTENCES, count)

    def _num_windows(self, spec: AudioSpec) -> int:
        count = BUDGET / (self.num_parameters * spec.num_tokens)
        return int(min(MAX_WINDOWS, max(MIN_WINDOWS, count)))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of ``text`` that the model knows, truncated to its number of positions."""
        ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        known = [index for index in ids if index < self.vocabulary_size]
        return known[: self.max_positions]

    def encode_pair(self, first: str, second: str) -> Encoding:
        """One text, or two if the second is not empty, in the model's template if it has one."""
        if not second:
            return self.tokenizer.encode(first)
        if self.pair_template is None:
            return self.tokenizer.encode(first, second)
        text = self.pair_template.render(first, second)
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompts(self, num_new_tokens: int, texts: Sequence[str] = PROMPTS) -> list[list[int]]:
        """Requests to a decoder, in its chat template if that can be rendered."""
        limit = min(MAX_PROMPT_TOKENS, self.max_positions - num_new_tokens)
        rows = [self._prompt(text)[:limit] for text in texts[: self.max_rows]]
        return [row for row in rows if row]

    def check_chat_template(self) -> None:
        """Raises ``UnsupportedError`` if the chat template does not render a user's message."""
        self._rendered("Hi")

    def sources(self) -> Sequence[Source]:
        """Sentences for an encoder-decoder, windows of speech, or images."""
        reader = SpeechReader.of(self)
        if reader is not None:
            return reader.windows(SENTENCES, self._num_windows(reader.spec))
        texts = sentences(self.source_language or "en")
        images = ImageReader.of(self, self.max_positions)
        if images is not None:
            return images.sources(texts, self.max_rows, IMAGE_SEED)
        rows = [self.encode(text)[:MAX_PROMPT_TOKENS] for text in texts[: self.max_rows]]
        return [row for row in rows if row]

    @property
    def target_start(self) -> list[int]:
        """The first tokens of every target; a multilingual model translates to Portuguese."""
        special, start = self.special_tokens, self.special_tokens.decoder_start
        if start is None:
            return []
        if self.transcription is not None:
            return english_start(self)
        token, known = special.forced_first, self.languages.values()
        if token is None and known and start not in known:
            named = [t for name, t in self.languages.items() if name.startswith(("pt", "por"))]
            token = (named or list(known))[0]
        return [start] if token is None else [start, token]

    def conversation(self, turns: Sequence[ChatTurn]) -> tuple[list[int], list[int]]:
        """The tokens before the last answer of a conversation, and those of the answer.

        Raises:
            ValueError: there is no chat template, it rejects the turns, or they are too long.
        """
        parts = conversation_parts(
            turns,
            self._template,
            self._named_tokens,
            lambda text: self.tokenizer.encode(text, add_special_tokens=False).ids,
            self.special_tokens.eos,
        )
        last = max(index for index, part in enumerate(parts) if part.is_answer)
        prompt = [id_ for part in parts[:last] for id_ in part.ids]
        if len(prompt) + len(parts[last].ids) > self.max_positions:
            raise ValueError(f"it has more than {self.max_positions} tokens")
        return prompt, parts[last].ids

    def _prompt(self, text: str) -> list[int]:
        rendered = self._rendered(text)
        if rendered is None:
            return self.encode(text)
        return self.encode(rendered, add_special_tokens=False)

    @cached_property
    def _template(self) -> Template | None:
        return None if self.chat_template is None else compile_chat_template(self.chat_template)

    def _rendered(self, text: str) -> str | None:
        if self._template is None:
            return None
        has_images = self.image is not None and self.image.prompt is not None
        return render_message(self._template, text, self._named_tokens, has_images=has_images)

    @property
    def _named_tokens(self) -> dict[str, str]:
        """The special tokens that a chat template may name."""
        return named_tokens(self.special_tokens, self.tokenizer.id_to_token)
