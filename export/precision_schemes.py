"""How bundles are quantized, by precision and device, and the choice of ``auto``."""

from dataclasses import dataclass
from enum import StrEnum

from export.errors import UnsupportedError
from model.bundle import Device, Dtype, Precision
from model.config import Kind


class WeightFormat(StrEnum):
    """How a constant matrix is stored and multiplied.

    ``DYNAMIC_*``: :mod:`export.blocks`; the others: :mod:`export.quantized_matmul`.
    """

    FLOAT = "float"
    ROW_INT8 = "row_int8"
    BLOCK_INT8 = "block_int8"
    BLOCK_INT4 = "block_int4"
    DYNAMIC_INT8 = "dynamic_int8"
    DYNAMIC_INT6 = "dynamic_int6"
    DYNAMIC_INT4 = "dynamic_int4"


@dataclass(frozen=True, kw_only=True)
class PrecisionScheme:
    """How fp32 graphs are converted to a precision.

    Attributes:
        matrices: the format of linear maps.
        sensitive: the format of linear maps that lose more accuracy: outputs of feed-forwards.
        output: the format of the output matrix, also if it is the token embedding.
        experts: the format of mixtures of experts; float on CUDA, whose kernel needs another
            layout of weights.
        embedding: the format of a token embedding that is not the output matrix.
        smoothed: whether SmoothQuant moves scales from activations to weights first
            (:mod:`export.smooth_quant`).
        stored: the type of float weights on disk; in memory they are fp32.
        computed: the type of all floats in memory: weights, activations and states.
        min_cosine: the minimum cosine to fp32 of the worst row; below it the export fails.
    """

    matrices: WeightFormat = WeightFormat.FLOAT
    sensitive: WeightFormat = WeightFormat.FLOAT
    output: WeightFormat = WeightFormat.FLOAT
    experts: WeightFormat = WeightFormat.FLOAT
    embedding: WeightFormat = WeightFormat.FLOAT
    smoothed: bool = False
    stored: Dtype = Dtype.FLOAT32
    computed: Dtype = Dtype.FLOAT32
    min_cosine: float = 0.999

    @property
    def is_plain(self) -> bool:
        """Whether the fp32 graphs stay as they are."""
        is_fp32 = self.stored == self.computed == Dtype.FLOAT32
        return is_fp32 and self.matrices == self.embedding == WeightFormat.FLOAT


_ROWS, _BLOCKS_8, _BLOCKS_4 = (
    WeightFormat.ROW_INT8,
    WeightFormat.BLOCK_INT8,
    WeightFormat.BLOCK_INT4,
)
_DYNAMIC_8, _DYNAMIC_6, _DYNAMIC_4 = (
    WeightFormat.DYNAMIC_INT8,
    WeightFormat.DYNAMIC_INT6,
    WeightFormat.DYNAMIC_INT4,
)
_FLOAT16, _BFLOAT16 = Dtype.FLOAT16, Dtype.BFLOAT16

# Measurements: docs/decisions/0006 to 0011. CUDA has no fp32 attention kernel and no MatMulInteger
# for unsigned bytes: there, quantized weights are in blocks and everything else is fp16.
SCHEMES: dict[tuple[Precision, Device], PrecisionScheme] = {
    (Precision.FP32, Device.CPU): PrecisionScheme(min_cosine=0.95),
    (Precision.FP32, Device.CUDA): PrecisionScheme(min_cosine=0.95),
    (Precision.FP16, Device.CPU): PrecisionScheme(stored=_FLOAT16),
    (Precision.BF16, Device.CPU): PrecisionScheme(stored=_BFLOAT16, min_cosine=0.99),
    (Precision.FP16, Device.CUDA): PrecisionScheme(computed=_FLOAT16, min_cosine=0.99),
    (Precision.BF16, Device.CUDA): PrecisionScheme(computed=_BFLOAT16, min_cosine=0.95),
    (Precision.INT8, Device.CPU): PrecisionScheme(
        matrices=_ROWS,
        sensitive=_ROWS,
        output=_ROWS,
        experts=_BLOCKS_8,
        embedding=_ROWS,
        smoothed=True,
        min_cosine=0.95,
    ),
    (Precision.INT4, Device.CPU): PrecisionScheme(
        matrices=_DYNAMIC_4,
        sensitive=_DYNAMIC_4,
        output=_DYNAMIC_6,
        experts=_BLOCKS_4,
        embedding=_DYNAMIC_4,
        min_cosine=0.85,
    ),
    (Precision.INT8, Device.CUDA): PrecisionScheme(
        matrices=_BLOCKS_8,
        sensitive=_BLOCKS_8,
        output=_BLOCKS_8,
        computed=_FLOAT16,
        min_cosine=0.95,
    ),
    (Precision.INT4, Device.CUDA): PrecisionScheme(
        matrices=_BLOCKS_4,
        sensitive=_BLOCKS_8,
        output=_BLOCKS_8,
        smoothed=True,
        computed=_FLOAT16,
        min_cosine=0.85,
    ),
}

# A decoder's errors add up over the tokens that it generates, and its activations have outliers:
# its weights and activations get a scale for each block of 32 (docs/decisions/0006-int8.md).
_INT8_DECODER = PrecisionScheme(
    matrices=_DYNAMIC_8,
    sensitive=_DYNAMIC_8,
    output=_DYNAMIC_8,
    experts=_BLOCKS_8,
    embedding=_DYNAMIC_8,
    min_cosine=0.95,
)


def scheme_for(precision: Precision, device: Device, kind: Kind) -> PrecisionScheme:
    """The scheme for a model of this kind."""
    if (precision, device, kind) == (Precision.INT8, Device.CPU, Kind.DECODER):
        return _INT8_DECODER
    return SCHEMES[precision, device]


AUTO = "auto"
# The precisions that ``auto`` chooses, and why.
_CHOICES = {
    Device.CPU: (Precision.INT8, "the fastest on a CPU, at a quarter of the memory of fp32"),
    Device.CUDA: (Precision.FP16, "what a GPU's attention kernels compute in"),
}


@dataclass(frozen=True)
class PrecisionChoice:
    """A precision and the reason for it, a message for the user."""

    precision: Precision
    reason: str


def choose_precision(precision: str, device: Device) -> PrecisionChoice:
    """The precision of this name; ``auto`` is the best one for ``device``.

    Raises:
        UnsupportedError: an unknown name; the message lists the known ones.
    """
    if precision == AUTO:
        return PrecisionChoice(*_CHOICES[device])
    if precision not in list(Precision):
        names = ", ".join([*Precision, AUTO])
        raise UnsupportedError(f"precision {precision!r} is not supported; supported: {names}")
    return PrecisionChoice(Precision(precision), "as requested")
