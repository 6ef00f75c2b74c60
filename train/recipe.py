"""A recipe: a TOML file with everything that determines a training.

The same recipe, code, and numbers of threads and processes give the same weights.
"""

import hashlib
from enum import StrEnum
from typing import Annotated

import msgspec

from model.bundle import NAME_PATTERN
from model.config import Activation, NormKind, NormOrder, ScoreKind
from model.position_config import SignalTarget
from model.recurrent_config import AlignmentKind, CellKind, ReadoutKind
from train.image_recipe import AugmentationRecipe, ImageStreamRecipe, PatchesRecipe
from train.retrieval_recipe import RetrievalRecipe
from train.section import Count, Positive, PositiveFloat, Section, Share


class ObjectiveKind(StrEnum):
    """A model's training objective."""

    NEXT_TOKEN = "next_token"
    MASKED = "masked"  # Devlin et al. 2018, section 3.1
    SEQUENCE_TO_SEQUENCE = "sequence_to_sequence"
    IMAGE_TO_TEXT = "image_to_text"
    CLASSIFICATION = "classification"
    TOKEN_CLASSIFICATION = "token_classification"
    SPAN = "span"
    RELEVANCE = "relevance"  # the score of a query and a document by a cross-encoder
    RETRIEVAL = "retrieval"  # vectors of queries and documents


# A decoder writes from a source: an encoder reads a text or an image.
WITH_SOURCE = (ObjectiveKind.SEQUENCE_TO_SEQUENCE, ObjectiveKind.IMAGE_TO_TEXT)


class StoredPrecision(StrEnum):
    """Precision of the weights in a finished checkpoint."""

    FP32 = "fp32"
    FP16 = "fp16"


class TokenizerKind(StrEnum):
    CHARACTERS = "characters"
    PHONEMES = "phonemes"  # single letters, and whole words of capitals such as ``AH``
    BPE = "bpe"  # Sennrich et al. 2016, over bytes (Radford et al. 2019)
    UNIGRAM = "unigram"  # Kudo 2018
    WORDPIECE = "wordpiece"  # Schuster and Nakajima 2012; BERT


class Positions(StrEnum):
    """The kinds of :class:`model.position_config.PositionKind`, and those in attention."""

    SINUSOIDAL = "sinusoidal"
    SINUSOIDAL_PAPER = "sinusoidal_paper"
    LEARNED = "learned"
    ROTARY = "rotary"  # Su et al. 2021
    RELATIVE = "relative"  # Shaw et al. 2018, for keys and values


ATTENTION_POSITIONS = (Positions.ROTARY, Positions.RELATIVE)


class Placement(StrEnum):
    """Where absolute positions enter the model."""

    ADDED = "added"  # to the embedding
    CONCATENATED = "concatenated"  # to the embedding; the result is projected
    EVERY_LAYER = "every_layer"  # added in every layer; only sinusoidal


class GlobalTokens(StrEnum):
    """Tokens that see all others and are seen by all (Beltagy et al. 2020, section 3.1)."""

    FIRST = "first"  # the first token of a text: for one label
    QUESTION = "question"  # the tokens before the first separator, up to the size of a window


class Precision(StrEnum):
    """Precision of matrix products; weights and the optimizer's state are always fp32."""

    FP32 = "fp32"
    BF16 = "bf16"


class DataRecipe(Section, frozen=True, kw_only=True):
    """The source of the examples.

    Attributes:
        source: ``synthetic:TASK``, ``debian:LANGUAGE``, ``debian:sections``,
            ``debian:relevance``, ``debian:summaries``, ``lexicon:cmudict``, ``images:mnist``,
            ``folder:PATH`` or ``file:PATH`` (relative to the recipe).
        labels: for ``debian:sections``, the sections to distinguish.
        num_train: for a synthetic task, number of examples to draw.
        num_validation, num_held_out: numbers of examples for validation during training, and for
            the quality of the result.
        max_length: longer rows, in tokens, are left out; documents for retrieval are cut.
    """

    source: Annotated[
        str, msgspec.Meta(pattern=r"^(synthetic|debian|lexicon|images|folder|file):.+$")
    ]
    num_train: Positive = 20_000
    num_validation: Positive = 200
    num_held_out: Positive = 200
    max_length: Positive = 128
    labels: tuple[str, ...] = ()


class TokenizerRecipe(Section, frozen=True, kw_only=True):
    """The tokenizer to train.

    Attributes:
        vocabulary_size: including special tokens; ``characters`` and ``phonemes`` ignore it.
        max_texts: the most texts to train it on; ``characters`` and ``phonemes`` read all.
    """

    kind: TokenizerKind
    vocabulary_size: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 8000
    lowercase: bool = False
    max_texts: Positive = 50_000


class ExpertsRecipe(Section, frozen=True, kw_only=True):
    """A mixture of experts in every layer, with the balancing loss of Fedus et al. 2021, eq. 4."""

    count: Annotated[int, msgspec.Meta(ge=2, le=1024)]
    active: Positive = 2
    balancing: Annotated[float, msgspec.Meta(ge=0)] = 0.01


class UniversalRecipe(Section, frozen=True, kw_only=True):
    """A Universal Transformer (Dehghani et al. 2019): each stack has one layer.

    The layer runs ``num_layers`` times; the timing signal before each step replaces positions.

    Attributes:
        halting: adaptive computation time; each token runs at most ``num_layers`` steps.
        epsilon: a token halts when its halting probabilities sum to ``1 - epsilon``.
        ponder_cost: weight of the mean ponder time in the loss (Graves 2016, eq. 15).
    """

    halting: bool = False
    epsilon: Annotated[float, msgspec.Meta(ge=1e-4, lt=1)] = 0.01
    ponder_cost: Annotated[float, msgspec.Meta(ge=0)] = 0.01


class RecurrentRecipe(Section, frozen=True, kw_only=True):
    """Recurrent layers instead of the Transformer's, in an encoder-decoder.

    States, embeddings and outputs have the model's ``hidden_size``; each direction of a
    bidirectional encoder has half of it. If encoder and decoder have equally many layers, the
    encoder's last states initialize the decoder; otherwise, a map of the top layer's does. See
    :mod:`model.recurrent_config` for the papers.

    Attributes:
        alignment: the attention's score; default: no attention, a fixed context.
        from_previous: the state before a step attends, not the state after it.
        readout: of the decoder, if there is an alignment.
    """

    cell: CellKind
    bidirectional: bool = False
    alignment: AlignmentKind | None = None
    from_previous: bool = False
    readout: ReadoutKind = ReadoutKind.TANH
    input_feeding: bool = False


class ModelRecipe(Section, frozen=True, kw_only=True):
    """The size and variant of the Transformer, or of a recurrent encoder-decoder.

    With ``recurrent``, only sizes, numbers of layers, ``max_positions`` and ``tied`` matter; with
    ``patches``, ``max_positions`` does not matter, unless there is a decoder: the positions and
    sizes of texts are then the decoder's.

    Attributes:
        num_heads, inner_size: default: the base model of Vaswani et al. 2017, table 3.
        num_layers: of the encoder, or of a decoder-only model.
        num_decoder_layers: for an encoder-decoder (default: ``num_layers``).
        num_kv_heads: default ``num_heads``.
        score, score_scale: for all attentions; see :class:`model.config.AttentionConfig`.
        max_distance: for relative positions; tokens farther apart share a vector (the paper's k).
        placement: for sinusoidal and learned positions.
        targets: the projections of self-attention to whose input ``every_layer`` adds positions.
            Default: the layer's input.
        sublayers: order of each stack's sub-layers, as letters: ``s`` for attention, ``f`` for a
            feed-forward; ``num_layers`` of each (Press et al. 2020). Default: ``sfsf…``.
        decoder_sublayers: for the decoder of an encoder-decoder, with ``c`` for cross-attention;
            ``num_decoder_layers`` of each. ``sublayers`` is then the encoder's.
        window: for all self-attentions; see :class:`model.config.AttentionConfig`.
        global_tokens: for an encoder with a window.
        tied: whether the output matrix is the token embedding.
    """

    hidden_size: Positive
    num_layers: Annotated[int, msgspec.Meta(ge=1, le=256)]
    num_decoder_layers: Annotated[int, msgspec.Meta(ge=1, le=256)] | None = None
    num_heads: Positive = 8
    num_kv_heads: Positive | None = None
    inner_size: Positive = 2048
    activation: Activation = Activation.RELU
    gated: bool = False
    norm: NormKind = NormKind.LAYER
    norm_order: NormOrder = NormOrder.PRE
    score: ScoreKind = ScoreKind.SCALED_DOT
    score_scale: PositiveFloat | None = None
    sublayers: str | None = None
    decoder_sublayers: str | None = None
    window: Positive | None = None
    global_tokens: GlobalTokens | None = None
    positions: Positions = Positions.SINUSOIDAL
    max_distance: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 16
    placement: Placement = Placement.ADDED
    targets: tuple[SignalTarget, ...] = ()
    max_positions: Positive = 512
    tied: bool = True
    experts: ExpertsRecipe | None = None
    universal: UniversalRecipe | None = None
    recurrent: RecurrentRecipe | None = None
    patches: PatchesRecipe | None = None
    image_stream: ImageStreamRecipe | None = None


class TrainingRecipe(Section, frozen=True, kw_only=True):
    """The optimization: Adam with the schedule of Vaswani et al. 2017, section 5.3.

    Attributes:
        num_steps: optimizer steps.
        batch_tokens: tokens per batch and process, padding included; of a pair, the longer of
            source and target counts.
        accumulation: batches per step.
        learning_rate: the peak, after ``warmup_steps``; default ``hidden_size ** -0.5 *
            warmup_steps ** -0.5``, as in the paper.
        validate_every: steps between checkpoints, each with a validation.
        patience: validations without a lower loss before the training stops; 0: never.
        num_averaged: number of last checkpoints whose weights are averaged (section 6.1).
        recurrent_dropout: between stacked recurrent layers, not in their states (Zaremba et al.
            2014).
        next_sentence: whether a masked language model also learns next-sentence prediction.
    """

    num_steps: Positive
    batch_tokens: Positive = 4096
    accumulation: Positive = 1
    learning_rate: PositiveFloat | None = None
    warmup_steps: Positive = 400
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    label_smoothing: Share = 0.0
    residual_dropout: Share = 0.0
    attention_dropout: Share = 0.0
    embedding_dropout: Share = 0.0
    recurrent_dropout: Share = 0.0
    max_gradient_norm: PositiveFloat = 1.0
    precision: Precision = Precision.FP32
    validate_every: Positive = 500
    patience: Count = 0
    num_averaged: Positive = 1
    log_every: Positive = 50
    next_sentence: bool = False
    mask_share: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.15
    augmentation: AugmentationRecipe | None = None


class AdapterRecipe(Section, frozen=True, kw_only=True):
    """Low-rank changes of the layers' linear maps, instead of their weights (Hu et al. 2021).

    Attributes:
        rank: of the change of each map; joined queries, keys and values are one map.
        alpha: changes are multiplied by ``alpha / rank``.
        dropout: of the inputs of the changes.
    """

    rank: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    alpha: PositiveFloat = 32.0
    dropout: Share = 0.0


class Recipe(Section, frozen=True, kw_only=True):
    """A whole recipe.

    Attributes:
        license: that of the weights.
        start_from: a default model's name, ``hf:OWNER/NAME`` or the path of a checkpoint of any
            format that ``export`` reads. The model starts with its weights where name and shape
            agree, and uses its tokenizer. Without ``model``, it has its layers too.
        adapter: the weights of ``start_from`` stay as they are, and the checkpoint has only what
            is added to them.
        tokenizer, model: required without ``start_from``; ``tokenizer`` is an error with it. A
            model of images has no tokenizer.
        stored_precision: of the weights in the checkpoint.
        max_length_factor: for translation: the default of ``max_new_tokens`` is this factor times
            the source's length.
    """

    name: Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
    description: str = ""
    license: str
    objective: ObjectiveKind
    seed: Count = 0
    source_language: str | None = None
    target_language: str | None = None
    start_from: str | None = None
    max_length_factor: PositiveFloat = 3.0
    data: DataRecipe
    stored_precision: StoredPrecision = StoredPrecision.FP32
    tokenizer: TokenizerRecipe | None = None
    model: ModelRecipe | None = None
    retrieval: RetrievalRecipe | None = None
    adapter: AdapterRecipe | None = None
    training: TrainingRecipe

    @property
    def fingerprint(self) -> str:
        """Identifies the recipe in the state of an unfinished training.

        The number of steps is not included: the schedule does not depend on it, so an unfinished
        training may be extended or shortened.
        """
        training = msgspec.structs.replace(self.training, num_steps=1)
        recipe = msgspec.structs.replace(self, training=training)
        return hashlib.sha256(msgspec.json.encode(recipe, order="sorted")).hexdigest()
