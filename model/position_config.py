"""The configuration of position encodings, as frozen values. Imports no torch."""

from enum import StrEnum

import msgspec


class PositionKind(StrEnum):
    """Absolute positions, added to or concatenated with a token's embedding."""

    NONE = "none"  # attention may use relative positions: see AttentionConfig
    # Sines, then cosines, with frequencies that fall geometrically from 1 to:
    SINUSOIDAL = "sinusoidal"  # 1 / 10,000, as in tensor2tensor and fairseq
    SINUSOIDAL_PAPER = "sinusoidal_paper"  # almost 1 / 10,000: Vaswani et al. 2017, section 3.5
    LEARNED = "learned"  # Gehring et al. 2017; BERT


class PositionPlacement(StrEnum):
    """How absolute positions are combined with a token's embedding."""

    ADDED = "added"
    CONCATENATED = "concatenated"  # then projected to the hidden size


class RelativeBiasKind(StrEnum):
    """Relative positions as a bias of attention scores, by the distance of key and query."""

    BUCKETS = "buckets"  # Raffel et al. 2020 (T5), section 2.1
    LINEAR = "linear"  # Press et al. 2021 (ALiBi)
    LINEAR_BF16 = "linear_bf16"  # by key position, rounded to bfloat16 (Falcon-RW)


class SignalKind(StrEnum):
    """A signal that a stack adds in every layer."""

    NONE = "none"
    SINUSOIDAL = "sinusoidal"  # Dehghani et al. 2018, equation 4
    POSITIONS = "positions"  # the same without the layer's depth


class SignalTarget(StrEnum):
    """A projection of self-attention that gets the stack's signal in its input."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"


class DistanceKind(StrEnum):
    """Which distances share a row of a table of relative positions."""

    CLIPPED = "clipped"  # He et al. 2020 (DeBERTa)
    LOGARITHMIC = "logarithmic"  # He et al. 2021 (DeBERTa v2)


class DisentangledTerm(StrEnum):
    """A term of disentangled attention scores: He et al. 2020, equation 2."""

    CONTENT_TO_POSITION = "content_to_position"
    POSITION_TO_CONTENT = "position_to_content"


class ConfigStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class PositionConfig(ConfigStruct, frozen=True, kw_only=True):
    """Absolute positions of the input embedding.

    Attributes:
        first: the position of a sequence's first token, for sinusoids.
        placement: concatenated vectors are projected to the hidden size. Tokens thus keep their
            full width, and the token table can also be the output matrix.
        size: size of concatenated vectors; default: that of the embeddings.
        max_source_positions: the encoder's number of positions, if it has more than the decoder;
            for learned positions, of which both stacks have their own.
    """

    kind: PositionKind
    max_positions: int
    first: int = 0
    placement: PositionPlacement = PositionPlacement.ADDED
    size: int | None = None
    max_source_positions: int | None = None


class LinearScaling(ConfigStruct, frozen=True, kw_only=True, tag=True):
    """Divides positions by ``factor`` (Chen et al. 2023)."""

    factor: float


class Llama3Scaling(ConfigStruct, frozen=True, kw_only=True, tag=True):
    """Divides low frequencies by ``factor`` and keeps high ones (Llama Team 2024).

    A frequency is low or high by its number of rotations within ``original_positions``.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: int


class YarnScaling(ConfigStruct, frozen=True, kw_only=True, tag=True):
    """YaRN (Peng et al. 2023, section 3.2): a ramp between kept and divided frequencies.

    The ramp runs from the dimension with ``fast`` rotations within ``original_positions`` to
    the one with ``slow`` rotations; ``whole`` rounds both outwards.
    """

    factor: float
    original_positions: int
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True


class ListedScaling(ConfigStruct, frozen=True, kw_only=True, tag=True):
    """Divides each frequency by its own factor (Ding et al. 2024, LongRoPE)."""

    factors: tuple[float, ...]


RotaryScaling = LinearScaling | Llama3Scaling | YarnScaling | ListedScaling


class RotaryConfig(ConfigStruct, frozen=True, kw_only=True):
    """Rotary position embedding (Su et al. 2021, RoFormer), in the half-split layout.

    Attributes:
        size: number of dimensions of a head that are rotated, in pairs
            ``(i, i + head_size / 2)`` from ``i = 0`` on. Default: all.
        magnitude: multiplies the rotated dimensions.
    """

    base: float = 10_000.0
    size: int | None = None
    scaling: RotaryScaling | None = None
    magnitude: float = 1.0


class RelativeBiasConfig(ConfigStruct, frozen=True, kw_only=True):
    """A bias for each head and distance. Layers with equal configurations share it.

    ``num_buckets`` and ``max_distance`` are for :attr:`RelativeBiasKind.BUCKETS`: distances from
    ``max_distance`` on share the last bucket. For :attr:`RelativeBiasKind.LINEAR_BF16`, positions
    are below ``max_distance``, and biases are multiplied by ``scale``. ``group`` separates layers
    with otherwise equal configurations that share no bias: in umT5, each has its own.
    """

    kind: RelativeBiasKind
    num_buckets: int = 0
    max_distance: int = 0
    scale: float = 1.0
    group: int = 0


class RelativePositionConfig(ConfigStruct, frozen=True, kw_only=True):
    """Vectors per distance, added to keys and values (Shaw et al. 2018, equations 3 and 4).

    Attributes:
        max_distance: the paper's ``k``: ``2 k + 1`` vectors, for distances clipped to ``-k … k``.
        per_head: whether each head has its own vectors; otherwise, heads share them.
        values: whether vectors are also added to values, not only to keys.
    """

    max_distance: int
    per_head: bool = False
    values: bool = True


class DisentangledConfig(ConfigStruct, frozen=True, kw_only=True):
    """Disentangled attention: scores of contents and relative positions (He et al. 2020).

    A table has a row for each of ``2 * span`` ranges of distances; distances from
    ``max_distance`` on share the last one.

    Attributes:
        has_query_bias: a vector is added to the queries of positions: ``v - u`` of Dai et al. 2019,
            where ``u`` is the bias of all queries.
        has_segments: tokens of other segments have a score too (Yang et al. 2019, section 2.5).
    """

    kind: DistanceKind
    span: int
    max_distance: int
    terms: tuple[DisentangledTerm, ...]
    has_query_bias: bool = False
    has_segments: bool = False
