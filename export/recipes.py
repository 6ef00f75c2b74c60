"""What each precision means on each device: one table, and the choice that ``auto`` makes."""

from dataclasses import dataclass
from enum import StrEnum

from export.errors import UnsupportedError
from model.bundle import Device, Dtype, Precision


class MatrixForm(StrEnum):
    """How a constant matrix is stored and multiplied with: see :mod:`export.quantized_matmul`."""

    FLOAT = "float"
    ROW_INT8 = "row_int8"
    BLOCK_INT8 = "block_int8"
    BLOCK_INT4 = "block_int4"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is done to the fp32 graphs of a bundle.

    Attributes:
        matrices: the form of linear maps, and ``sensitive`` that of those that lose most.
        experts: the form of mixtures of experts. CUDA's kernel wants another layout of weights.
        embedding: the form of the token embedding, which a tied output matrix shares.
        evened: scales move from activations to weights first (:mod:`export.smooth_quant`).
        stored: the type that float weights have on the disk; they are fp32 in memory.
        computed: the type of all floats: weights, activations and states.
        min_cosine: to fp32, of the worst row; below it the export fails.
    """

    matrices: MatrixForm = MatrixForm.FLOAT
    sensitive: MatrixForm = MatrixForm.FLOAT
    experts: MatrixForm = MatrixForm.FLOAT
    embedding: MatrixForm = MatrixForm.FLOAT
    evened: bool = False
    stored: Dtype = Dtype.FLOAT32
    computed: Dtype = Dtype.FLOAT32
    min_cosine: float = 0.999

    @property
    def is_plain(self) -> bool:
        """The fp32 graphs stay as they are."""
        is_fp32 = self.stored == self.computed == Dtype.FLOAT32
        return is_fp32 and self.matrices == self.embedding == MatrixForm.FLOAT


_ROWS, _BLOCKS_8, _BLOCKS_4 = MatrixForm.ROW_INT8, MatrixForm.BLOCK_INT8, MatrixForm.BLOCK_INT4
_HALF, _BRAIN = Dtype.FLOAT16, Dtype.BFLOAT16

# docs/decisions/0010 to 0012 have what was measured. On CUDA attention has no fp32 kernel, and
# MatMulInteger no kernel for unsigned bytes: weights are blocks there, everything else fp16.
RECIPES: dict[tuple[Precision, Device], Recipe] = {
    (Precision.FP32, Device.CPU): Recipe(min_cosine=0.95),
    (Precision.FP32, Device.CUDA): Recipe(min_cosine=0.95),
    (Precision.FP16, Device.CPU): Recipe(stored=_HALF),
    (Precision.BF16, Device.CPU): Recipe(stored=_BRAIN, min_cosine=0.99),
    (Precision.FP16, Device.CUDA): Recipe(computed=_HALF, min_cosine=0.99),
    (Precision.BF16, Device.CUDA): Recipe(computed=_BRAIN, min_cosine=0.95),
    (Precision.INT8, Device.CPU): Recipe(
        matrices=_ROWS,
        sensitive=_ROWS,
        experts=_BLOCKS_8,
        embedding=_ROWS,
        evened=True,
        min_cosine=0.95,
    ),
    (Precision.INT4, Device.CPU): Recipe(
        matrices=_BLOCKS_4,
        sensitive=_ROWS,
        experts=_BLOCKS_4,
        embedding=_ROWS,
        evened=True,
        min_cosine=0.85,
    ),
    (Precision.INT8, Device.CUDA): Recipe(
        matrices=_BLOCKS_8, sensitive=_BLOCKS_8, computed=_HALF, min_cosine=0.95
    ),
    (Precision.INT4, Device.CUDA): Recipe(
        matrices=_BLOCKS_4, sensitive=_BLOCKS_8, evened=True, computed=_HALF, min_cosine=0.85
    ),
}

AUTO = "auto"
# What ``auto`` picks, and why.
_CHOICES = {
    Device.CPU: (Precision.INT8, "the fastest on a CPU, at a quarter of the memory of fp32"),
    Device.CUDA: (Precision.FP16, "what a GPU's attention kernels compute in"),
}


@dataclass(frozen=True)
class Choice:
    """A precision, and why: for the person who asked."""

    precision: Precision
    reason: str


def choose(precision: str, device: Device) -> Choice:
    """``precision`` by its name, or the one that suits ``device`` if it is ``auto``.

    Raises:
        UnsupportedError: no precision of this name; the message lists those there are.
    """
    if precision == AUTO:
        return Choice(*_CHOICES[device])
    if precision not in list(Precision):
        names = ", ".join([*Precision, AUTO])
        raise UnsupportedError(f"precision {precision!r} is not supported; {names} are")
    return Choice(Precision(precision), "as asked")
