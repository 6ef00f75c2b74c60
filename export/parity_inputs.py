"""The inputs of the parity check: random rows of token ids and tokenized sample texts."""

import dataclasses

import numpy as np
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from export.decoding import DecodingInputs
from export.encoding import EncoderInputs
from export.errors import ParityError
from export.image_sources import ImageReader, ImageSource
from export.importers.samples import ENGLISH_TEXTS
from export.prompt_images import PlacedImage
from export.speech import SENTENCES, Source, SpeechReader, SpeechWindow, encoder_windows
from model.bundle import AudioSpec, SpecialTokens
from model.config import Kind

NUM_STEPS = 32
# For a large model: every step, and every row in the eager module, reads gigabytes.
NUM_LARGE_STEPS = 8
NUM_LARGE_ROWS = 6
RANDOM_LENGTHS = (13, 1, 7, 4)
NUM_IMAGES = 6
NUM_IMAGE_SOURCES = 4  # images of an encoder-decoder
NUM_FORCED = 3
NUM_SENTENCES = 3  # windows of speech for an encoder
NUM_WINDOWS = 2  # windows of speech; there is also a silent one
SHORT_SAMPLES = 400  # of a window of a model without frames
SEED = 20170612


def parity_rows(checkpoint: Checkpoint) -> list[list[int]]:
    """Random rows of several lengths, then the tokenized sample inputs."""
    rng = np.random.default_rng(SEED)
    limit = checkpoint.config.position.max_positions
    vocabulary_size = checkpoint.config.vocabulary_size
    rows = [
        rng.integers(0, vocabulary_size, min(length, max(1, limit // 2))).tolist()
        for length in RANDOM_LENGTHS
    ]
    return rows + tokenize_samples(checkpoint)


def encoder_inputs(checkpoint: Checkpoint) -> EncoderInputs:
    """:func:`parity_rows` for an encoder; images, one of them black; rows with images; speech."""
    config = checkpoint.config
    if checkpoint.audio is not None:
        return EncoderInputs([], None, speech=_speech(checkpoint.audio))
    if config.patches is None:
        return EncoderInputs.of(config, parity_rows(checkpoint))
    images = checkpoint.images(NUM_IMAGES, SEED)
    images.append(np.zeros_like(images[0]))
    if not config.reads_texts:
        return EncoderInputs([], None, images)
    rows = parity_rows(checkpoint)
    return EncoderInputs.of(
        config, rows, [images[index % len(images)] for index in range(len(rows))]
    )


def _speech(spec: AudioSpec) -> list[SpeechWindow]:
    """Windows of several lengths: one of a single frame, speech, and one that ends in silence."""
    windows = encoder_windows(spec, SENTENCES, NUM_SENTENCES)
    samples, size = windows[0].samples, spec.frame_size or SHORT_SAMPLES
    short = SpeechWindow(samples[size : 2 * size], spec.tokens_of(size), [])
    silenced = samples.copy()
    silenced[len(samples) // 2 :] = 0
    return [*windows, short, SpeechWindow(silenced, len(windows[0]), [])]


def tokenize_samples(checkpoint: Checkpoint) -> list[list[int]]:
    """The sample inputs as rows of ids, truncated to the model's positions."""
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    limit = checkpoint.config.position.max_positions
    rows = [tokenizer.encode(text).ids[:limit] for text in checkpoint.sample_inputs]
    return [row for row in rows if row]


def decoding_inputs(checkpoint: Checkpoint, *, is_large: bool) -> DecodingInputs:
    """:func:`parity_rows` as prompts of a decoder, or as sources of an encoder-decoder.

    Models of speech and of images have windows of speech and images as sources instead.

    Raises:
        ParityError: an encoder-decoder has no decoder start token.
    """
    special, reader = checkpoint.special_tokens, SpeechReader.of(checkpoint)
    limit = checkpoint.config.position.max_positions
    images = ImageReader.of(checkpoint, limit)
    rows = parity_rows(checkpoint) if reader is None and images is None else []
    num_steps = NUM_STEPS
    if is_large:
        rows, num_steps = rows[:NUM_LARGE_ROWS], NUM_LARGE_STEPS
    suppressed = special.suppressed
    if checkpoint.config.kind == Kind.DECODER:
        placed = prompts_with_images(checkpoint, rows) if checkpoint.config.vision else []
        num_steps = max(1, min(num_steps, limit - max(map(len, rows))))
        return DecodingInputs(
            prompts=rows, num_steps=num_steps, suppressed=suppressed, images=placed
        )
    if special.decoder_start is None:
        raise ParityError("an encoder-decoder needs special_tokens.decoder_start")
    start = special.decoder_start
    if reader is not None:
        return _speech_inputs(reader, special)
    if images is not None:
        return _image_inputs(images, special, num_steps, limit)
    # Forced prefixes: the targets of the random rows start with 0 to 3 random tokens.
    prefixes = [[start, *rows[index][:index]] for index in range(len(RANDOM_LENGTHS))]
    prompts = prefixes + [[start]] * (len(rows) - len(prefixes))
    num_steps = max(1, min(num_steps, limit - max(map(len, prompts))))
    return DecodingInputs(prompts=prompts, num_steps=num_steps, sources=rows, suppressed=suppressed)


def prompts_with_images(checkpoint: Checkpoint, rows: list[list[int]]) -> list[list[PlacedImage]]:
    """Adds an image to every other one of ``rows`` that has room, after its first token.

    Returns:
        the images of each row
    """
    image, limit = checkpoint.image, checkpoint.config.position.max_positions
    if image is None or image.prompt is None:
        raise ParityError("a decoder that reads images needs the format of images in prompts")
    placed: list[list[PlacedImage]] = [[] for _ in rows]
    pictures = checkpoint.images(NUM_IMAGES, SEED)
    for index in range(0, len(rows), 2):
        if len(rows[index]) + image.num_tokens <= limit // 2:
            rows[index][1:1] = [image.prompt.token] * image.num_tokens
            placed[index] = [PlacedImage(1, pictures[index // 2 % len(pictures)])]
    return placed


def _speech_inputs(reader: SpeechReader, special: SpecialTokens) -> DecodingInputs:
    """Windows of speech and of silence; targets start with the transcripts of other windows."""
    windows = reader.windows(SENTENCES, NUM_WINDOWS)
    silent = dataclasses.replace(windows[0], samples=np.zeros_like(windows[0].samples))
    sources: list[Source] = [*windows, silent]
    start = reader.start
    prompts = [start, windows[0].target[: len(start) + 4], [*start[:1], *start]]
    return DecodingInputs(
        prompts=prompts, num_steps=NUM_LARGE_STEPS, sources=sources, suppressed=special.suppressed
    )


def _image_inputs(
    reader: ImageReader, special: SpecialTokens, num_steps: int, limit: int
) -> DecodingInputs:
    """Images, one of them black; targets start with up to 3 tokens of the next image's text."""
    images = reader.sources(ENGLISH_TEXTS, NUM_IMAGE_SOURCES, SEED)
    black = dataclasses.replace(images[0], pixels=np.zeros_like(images[0].pixels))
    sources: list[ImageSource] = [*images, black]
    prompts = [
        source.target[: 1 + min(index, NUM_FORCED)]
        for index, source in enumerate([*sources[1:], sources[0]])
    ]
    num_steps = max(1, min(num_steps, limit - max(map(len, prompts))))
    return DecodingInputs(
        prompts=prompts, num_steps=num_steps, sources=sources, suppressed=special.suppressed
    )
