"""The whole model, built from its configuration: embedding, encoder, decoder and head."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from model.adaptive import AdaptiveDecoder, AdaptiveEncoder
from model.audio_embedding import AudioEmbedding
from model.config import HeadKind, Kind, ModelConfig
from model.eager import EagerKernels
from model.embeddings import (
    FirstEmbedding,
    ImageEmbedding,
    InputEmbedding,
    TargetTokens,
    TokenEmbedding,
    images_config,
)
from model.heads import HEADS, EmbeddingHead, SparseHead
from model.image_stream import ImageStream
from model.kernels import ModelKernels, Step
from model.layers import full_lengths
from model.mixer_state import State
from model.recurrent import RecurrentDecoder, RecurrentEncoder
from model.rereading import RereadingDecoder, shifted
from model.span_head import SpanHead, SpanPlaces
from model.spectrogram import SpectrogramEmbedding
from model.stacks import Decoder, Encoder
from model.vision import ImageVectors, VisionTower
from model.waveform import WaveformEmbedding, Waveforms

EAGER = EagerKernels()


class DecoderOutput(NamedTuple):
    """``hidden [batch, length, size]``, and each layer's state after the step."""

    hidden: Tensor
    states: list[State]


class EncodedFrames(NamedTuple):
    """``hidden [batch, frames, size]``, right-padded to ``lengths [batch]``."""

    hidden: Tensor
    lengths: Tensor


def _head(config: ModelConfig, kernels: ModelKernels) -> nn.Module:
    if config.head.kind == HeadKind.SPAN_CLASSIFICATION:
        return SpanHead(config, kernels)
    return HEADS[config.head.kind](config)


class Transformer(nn.Module):
    """An encoder, a decoder or both; or recurrent layers, if configured.

    Parameters are uninitialized: load them (``load_state_dict(..., assign=True)``) or see
    :mod:`model.initialise`.
    """

    def __init__(self, config: ModelConfig, kernels: ModelKernels = EAGER) -> None:
        super().__init__()
        self.config = config
        self.images: ImageEmbedding | None = None
        source = config  # as the encoder has it
        if config.patches is not None and config.kind == Kind.ENCODER_DECODER:
            source = images_config(config, config.patches, config.encoder_size)
            self.images = ImageEmbedding(source, config.patches)
        self.embedding = _first_embedding(config)
        self.audio: AudioEmbedding | None = None
        if config.audio is not None and config.kind == Kind.ENCODER_DECODER:
            self.audio = AudioEmbedding(config, config.audio)
        self.target_tokens: TargetTokens | None = None
        if config.embedding.separate_tokens:
            self.target_tokens = TargetTokens(config)
        self.target_embedding: InputEmbedding | None = None
        if config.embedding.separate_target:
            self.target_embedding = InputEmbedding(
                config, norms_tokens=config.embedding.norms_target_tokens
            )
        self.encoder: Encoder | RecurrentEncoder
        self.decoder: Decoder | RecurrentDecoder | RereadingDecoder
        if config.recurrent is not None:
            self.encoder = RecurrentEncoder(config, config.recurrent, kernels)
            self.decoder = RecurrentDecoder(config, config.recurrent, kernels)
        if config.encoder is not None:
            encoder = Encoder if config.encoder.halting is None else AdaptiveEncoder
            self.encoder = encoder(source, config.encoder, kernels)
        if config.decoder is not None and config.rereading is not None:
            self.decoder = RereadingDecoder(config, config.decoder, kernels)
        elif config.decoder is not None:
            decoder = Decoder if config.decoder.halting is None else AdaptiveDecoder
            self.decoder = decoder(config, config.decoder, kernels)
        self.image_stream: ImageStream | None = None
        if config.image_stream is not None and config.patches is not None:
            self.image_stream = ImageStream(config, config.image_stream, config.patches, kernels)
        self.vision: VisionTower | None = None
        if config.vision is not None:
            self.vision = VisionTower(config, config.vision, kernels)
        self.head = _head(config, kernels)

    def encode(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        segment_ids: Tensor | None = None,
        attended_lengths: Tensor | None = None,
    ) -> Tensor:
        """``token_ids [batch, length]``, right-padded to ``lengths [batch]``, to hidden vectors.

        Args:
            attended_lengths: ``[batch]``, number of a row's tokens that are attended to; default:
                all.

        Returns:
            ``[batch, length, size]``
        """
        attended = lengths if attended_lengths is None else attended_lengths
        x = self.embedding.embed(token_ids, segment_ids, lengths)
        hidden: Tensor = self._run_encoder(x, token_ids, attended, segment_ids)
        if self.config.rereading is not None:
            again = shifted(token_ids, lengths, self.config.rereading)
            y = self._embed_target(again, torch.arange(again.shape[1])[None])
            hidden = self.decoder(y, hidden, lengths)
        return hidden

    def encode_images(self, pixels: Tensor) -> Tensor:
        """``pixels [batch, height, width, channels]``, 0 to 255, to hidden vectors.

        Returns:
            ``[batch, tokens, size]``; of a decoder, vectors for :class:`ImageVectors`
        """
        if self.vision is not None:
            vectors: Tensor = self.vision(pixels)
            return vectors
        x = self.embedding.embed(pixels)
        hidden: Tensor = self.encoder(x, full_lengths(x))
        return hidden

    def encode_waveforms(self, waveforms: Waveforms) -> EncodedFrames:
        """Windows of recordings to hidden vectors."""
        if isinstance(self.embedding, WaveformEmbedding):
            lengths = self.embedding.num_frames(waveforms.lengths)
            x = self.embedding.embed_waveforms(waveforms)
            return EncodedFrames(self.encoder(x, lengths), lengths)
        if isinstance(self.embedding, SpectrogramEmbedding):
            x = self.embedding.embed_waveforms(waveforms)
        elif isinstance(self.embedding, AudioEmbedding):
            x = self.embedding.embed(waveforms.samples)
        else:
            raise TypeError("this model does not read recordings")
        return EncodedFrames(self.encoder(x, full_lengths(x)), full_lengths(x))

    def encode_pairs(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        pixels: Tensor,
        segment_ids: Tensor | None = None,
    ) -> Tensor:
        """Texts as for :meth:`encode`, each with an image as for :meth:`encode_images`.

        Returns:
            ``[batch, 1, size]``
        """
        if self.image_stream is None or not isinstance(self.encoder, Encoder):
            raise TypeError("this model does not read texts with images")
        text = self.embedding.embed(token_ids, segment_ids, lengths)
        fused: Tensor = self.image_stream(text, lengths, pixels, self.encoder)
        return fused

    def encode_source(self, token_ids: Tensor, lengths: Tensor) -> list[State]:
        """The decoder's initial states for a source, given as in :meth:`encode`."""
        x = self.embedding.embed(token_ids, lengths=lengths)
        return self._writer.cross_attention_kv(self._run_encoder(x, token_ids, lengths))

    def encode_audio(self, samples: Tensor) -> list[State]:
        """The same for speech: windows of samples ``[batch, samples]``, int16."""
        if self.audio is None:
            raise TypeError("this model does not read speech")
        x = self.audio.embed(samples)
        return self._writer.cross_attention_kv(self.encoder(x, full_lengths(x)))

    def encode_image_source(self, pixels: Tensor) -> list[State]:
        """The same for images, given as in :meth:`encode_images`."""
        if self.images is None:
            raise TypeError("this model does not write texts about images")
        x = self.images.embed(pixels)
        return self._writer.cross_attention_kv(self.encoder(x, full_lengths(x)))

    @property
    def _writer(self) -> Decoder | RecurrentDecoder:
        if isinstance(self.decoder, RereadingDecoder):
            raise TypeError("this model writes no text")
        return self.decoder

    def _run_encoder(
        self, x: Tensor, token_ids: Tensor, lengths: Tensor, segment_ids: Tensor | None = None
    ) -> Any:
        stack = self.config.encoder
        if stack is not None and stack.num_segments:
            return self.encoder(x, lengths, segments=segment_ids)
        if stack is None or stack.global_before is None:
            return self.encoder(x, lengths)
        is_before = (token_ids == stack.global_before).cumsum(1) == 0
        return self.encoder(x, lengths, is_before.sum(1))

    def pool(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The encoder's head: ``[batch, size or labels]``, or ``[batch, length, labels]``."""
        if isinstance(self.head, SparseHead) and isinstance(self.embedding, TokenEmbedding):
            return self.head.weights(hidden, lengths, self.embedding.tokens.weight)
        pooled: Tensor = self.head(hidden, lengths)
        return pooled

    def head_outputs(self, hidden: Tensor, lengths: Tensor) -> list[Tensor]:
        """All outputs of the encoder's head; of an embedding head the hidden vectors second."""
        outputs = [self.pool(hidden, lengths)]
        if isinstance(self.head, EmbeddingHead):
            outputs += [hidden, *self.head.of_tokens(hidden)]
        return outputs

    def score_spans(self, hidden: Tensor, places: SpanPlaces) -> Tensor:
        """The logits of spans for labels: see :class:`model.span_head.SpanHead`."""
        scores: Tensor = self.head(hidden, places)
        return scores

    def decode(
        self,
        token_ids: Tensor,
        step: Step,
        states: list[State] | None = None,
        logit_positions: Tensor | None = None,
        images: ImageVectors | None = None,
    ) -> DecoderOutput:
        """Runs the decoder over ``token_ids [batch, length]``.

        A token's position is ``num_cached_tokens`` plus its index.

        Args:
            states: returned by the previous step; for the first step, those of
                :meth:`encode_source`, or None without a source. Trailing layers without a state
                may be left out.
            logit_positions: ``[n]``, each ``row * length + index``. If given, only these tokens'
                hidden vectors are returned, ``[1, n, size]``.
            images: vectors of the prompts' images.
        """
        states = states or []
        states = states + [{} for _ in self.decoder.order[len(states) :]]
        positions = step.num_cached_tokens[:, None] + torch.arange(token_ids.shape[1])
        x = self._embed_target(token_ids, positions, images)
        return DecoderOutput(*self.decoder(x, step, states, logit_positions))

    def _embed_target(
        self, token_ids: Tensor, positions: Tensor, images: ImageVectors | None = None
    ) -> Tensor:
        """The decoder's input ``[batch, length, size]``; ``positions [batch or 1, length]``."""
        embed = self.target_embedding or self.embedding
        look_up = self.target_tokens or self.embedding.look_up
        x = look_up(token_ids)
        if images is not None:
            x = images.replace(x)
        embedded: Tensor = embed(x, positions, None)
        return embedded

    def logits(self, hidden: Tensor) -> Tensor:
        """A language model's head: ``[..., size]`` to ``[..., vocabulary]``."""
        if not isinstance(self.embedding, TokenEmbedding):
            raise TypeError("a model of images has no language model")
        table = self.embedding.tokens if self.target_tokens is None else self.target_tokens.tokens
        logits: Tensor = self.head(hidden, table.weight)
        return logits


def _first_embedding(config: ModelConfig) -> FirstEmbedding:
    """The embedding of an encoder's inputs, or of tokens."""
    writes_text = config.kind == Kind.ENCODER_DECODER
    if config.waveform is not None:
        return WaveformEmbedding(config, config.waveform)
    if config.spectrogram is not None:
        return SpectrogramEmbedding(config, config.spectrogram)
    if config.audio is not None and not writes_text:
        return AudioEmbedding(config, config.audio)
    if config.patches is None or config.image_stream is not None or writes_text:
        return TokenEmbedding(config)
    return ImageEmbedding(config, config.patches)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of a model with this configuration."""
    with torch.device("meta"):
        model = Transformer(config)
    return {name: tuple(weight.shape) for name, weight in model.state_dict().items()}


def from_weights(
    config: ModelConfig, weights: dict[str, Tensor], kernels: ModelKernels = EAGER
) -> Transformer:
    """A model for inference. It uses ``weights`` directly, without a copy."""
    model = Transformer(config, kernels)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(requires_grad=False)
