"""The configuration of a Transformer, as frozen values. Imports no torch.

:mod:`model.variants` lists the variants of each part.
"""

from model.audio_config import AudioConfig
from model.convolution_config import ShortConvolutionConfig
from model.experts_config import (
    ClampedGateConfig,
    ExpertsConfig,
    RoutingConfig,
    SharedExpertConfig,
)
from model.halting_config import HaltingConfig
from model.head_config import DenseConfig, HeadConfig, SpanConfig
from model.image_config import PatchConfig
from model.latent_config import LatentConfig
from model.norm_config import NormConfig
from model.position_config import ConfigStruct, PositionConfig
from model.recurrent_config import RecurrentConfig
from model.rereading_config import RereadingConfig
from model.spectrogram_config import SpectrogramConfig
from model.stack_config import AttentionConfig, FeedForwardConfig, LayerConfig, StackConfig
from model.variants import (
    LINEAR_SCORES,
    Activation,
    Branches,
    HeadKind,
    HeadNormScope,
    Kind,
    MixerKind,
    NormKind,
    NormOrder,
    PoolingKind,
    ScoreKind,
)
from model.vision_config import VisionConfig
from model.waveform_config import WaveformConfig

__all__ = [
    "LINEAR_SCORES",
    "Activation",
    "AttentionConfig",
    "Branches",
    "ClampedGateConfig",
    "ConnectionConfig",
    "DenseConfig",
    "EmbeddingConfig",
    "ExpertsConfig",
    "FeedForwardConfig",
    "HaltingConfig",
    "HeadConfig",
    "HeadKind",
    "HeadNormScope",
    "ImageStreamConfig",
    "Kind",
    "LatentConfig",
    "LayerConfig",
    "MixerKind",
    "ModelConfig",
    "NormConfig",
    "NormKind",
    "NormOrder",
    "PoolingKind",
    "RoutingConfig",
    "ScoreKind",
    "SharedExpertConfig",
    "ShortConvolutionConfig",
    "SpanConfig",
    "SpectrogramConfig",
    "StackConfig",
    "VisionConfig",
    "WaveformConfig",
]


class EmbeddingConfig(ConfigStruct, frozen=True, kw_only=True):
    """The input embedding.

    Encoder and decoder share the token table unless ``separate_tokens`` is set (T5Gemma), and the
    rest unless ``separate_target`` is set: the decoder then has its own positions and norm (BART).
    ``norms_target_tokens``: that norm comes before the positions (BlenderbotSmall).
    """

    scale: float = 1.0  # Vaswani et al. multiply by sqrt(hidden_size)
    norm: NormConfig | None = None  # BERT normalizes the sum of its embeddings
    num_segments: int = 0  # BERT's token types
    # If given, a linear map projects the embeddings to the hidden size (Lan et al. 2019).
    size: int | None = None
    separate_tokens: bool = False
    separate_target: bool = False
    norms_target_tokens: bool = False
    trigram_size: int | None = None  # as in :class:`model.embeddings.Trigrams`
    dropped_token: int | None = None  # id of the mask token, with token dropout (ESM)


class ConnectionConfig(ConfigStruct, frozen=True, kw_only=True):
    """One co-attentional layer per stream (Lu et al. 2019, section 2.1, figure 2b).

    Attributes:
        text: its cross-attention reads the image's vectors; it has no mixer.
        image: its cross-attention reads the text's vectors.
        text_depth: number of the text stack's layers that run before it; ``image_depth`` likewise.
    """

    text: LayerConfig
    image: LayerConfig
    text_depth: int
    image_depth: int


class ImageStreamConfig(ConfigStruct, frozen=True, kw_only=True):
    """The image stream beside a text stream (ViLBERT, Lu et al. 2019).

    Attributes:
        norm: normalizes the embeddings of patches.
        connections: in the order in which they run.
        fusion: activation of the dense layers in ``dense(text) * dense(image)``, which combines
            both class tokens; its size is the model's ``hidden_size``.
    """

    hidden_size: int
    norm: NormConfig | None = None
    encoder: StackConfig
    connections: tuple[ConnectionConfig, ...]
    fusion: Activation


class ModelConfig(ConfigStruct, frozen=True, kw_only=True):
    """A whole model. Encoder and decoder share the token embedding.

    An encoder has a ``decoder`` only with ``rereading``. An encoder-decoder has either ``encoder``
    and ``decoder``, or ``recurrent``. An encoder with ``patches`` reads images; it has no
    vocabulary, unless an ``image_stream`` reads them beside the text. An encoder with ``waveform``,
    ``spectrogram`` or ``audio`` reads recordings; its vocabulary is what its head predicts for each
    frame, if it does. A decoder with ``vision`` reads images in its prompts. An encoder-decoder
    with ``patches`` or ``audio`` reads images or speech and writes text.
    """

    kind: Kind
    vocabulary_size: int
    hidden_size: int
    position: PositionConfig
    embedding: EmbeddingConfig
    encoder: StackConfig | None = None
    decoder: StackConfig | None = None
    recurrent: RecurrentConfig | None = None
    patches: PatchConfig | None = None
    image_stream: ImageStreamConfig | None = None
    vision: VisionConfig | None = None
    audio: AudioConfig | None = None
    waveform: WaveformConfig | None = None
    spectrogram: SpectrogramConfig | None = None
    rereading: RereadingConfig | None = None
    head: HeadConfig

    @property
    def num_layers(self) -> int:
        """Number of layers of all stacks, counted as often as they run."""
        if self.recurrent is not None:
            return self.recurrent.num_encoder_layers + self.recurrent.num_decoder_layers
        image = None if self.image_stream is None else self.image_stream.encoder
        return sum(len(stack.applied) for stack in (self.encoder, self.decoder, image) if stack)

    @property
    def encoder_size(self) -> int:
        """The size of the encoder's vectors."""
        layers = () if self.decoder is None else self.decoder.layers
        sizes = (x.cross_attention.source_size for x in layers if x.cross_attention is not None)
        return next(filter(None, sizes), self.hidden_size)

    @property
    def num_segments(self) -> int:
        """The number of token types that the model distinguishes; 0 if it takes none."""
        return self.embedding.num_segments or (self.encoder.num_segments if self.encoder else 0)

    @property
    def reads_texts(self) -> bool:
        """Whether the first stack takes token ids."""
        reads_images = self.patches is not None and self.image_stream is None
        return not reads_images and not self.reads_recordings

    @property
    def reads_recordings(self) -> bool:
        """Whether the first stack takes samples."""
        inputs = (self.audio, self.waveform, self.spectrogram)
        return any(config is not None for config in inputs)
