"""Adds LoRA adapters to the graphs of a bundle.

After each product ``y = x W`` of a matrix that an adapter changes, a graph adds ``x A[i] B[i]``,
with the adapter ``i`` of each row from the input :data:`model.adapters.ADAPTERS`; those of index 0
are zeros. Converting a graph keeps the names of its values, so that products are found before. The
factors stay in floating point in every precision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.tape import Tape

from export.adapters import ALONE, Factors, ServedAdapter
from export.constant_matmuls import ConstantMatMul, constant_matmuls
from export.errors import ParityError, UnsupportedError
from export.graph_files import load_graph, save_graph
from export.parity import compare_fp32, min_cosine
from export.precision_schemes import PrecisionScheme, WeightFormat
from export.quantize import TRACED
from export.quantized_matmul import constant
from export.signatures import LOGIT_POSITIONS, Signatures
from export.smooth_quant import ChannelScales
from model.adapters import ADAPTERS, AdapterSpec
from model.bundle import Device, Dtype, Parity, TensorSpec
from model.parity import AdapterParity

CHOSEN = f"{ADAPTERS}.chosen"  # the adapter of each of logit_positions
INPUT = TensorSpec(name=ADAPTERS, dtype=Dtype.INT32, shape=("batch",))
_STORED = {Dtype.FLOAT16: np.float16, Dtype.BFLOAT16: ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Product:
    """A product of a graph: the names of its matrix and of its values.

    ``is_chosen``: whether its rows are the tokens at ``logit_positions``, not whole sequences.
    """

    matrix: str
    x: str
    y: str
    is_chosen: bool


class AdapterStage:
    """The part of an export that adds adapters to graphs, and checks them.

    Call the methods in their order; without adapters, they change nothing.

    Raises:
        UnsupportedError: ``device`` is no CPU.
    """

    def __init__(self, adapters: Sequence[ServedAdapter], device: Device) -> None:
        if adapters and device != Device.CPU:
            raise UnsupportedError(f"--adapter: not for --device {device}: {ALONE}")
        self._adapters = list(adapters)
        self._products: dict[str, list[Product]] = {}
        self._traced: Signatures = {}

    @property
    def specs(self) -> tuple[AdapterSpec, ...]:
        return tuple(adapter.spec for adapter in self._adapters)

    def scale(self, scales: ChannelScales) -> None:
        """Scales the factors of a matrix whose channels were scaled."""
        self._adapters = [adapter.scaled(scales) for adapter in self._adapters]

    def find_products(self, graphs: Signatures, directory: Path) -> None:
        """Finds the products of changed matrices in the fp32 graphs in ``directory``.

        Raises:
            UnsupportedError: a changed matrix is in no product.
        """
        changed = {name for adapter in self._adapters for name in adapter.factors}
        if not changed:
            return
        self._traced = graphs
        for name, graph in graphs.items():
            model = load_graph(directory / graph.file)
            self._products[name] = [
                product
                for found in constant_matmuls(model.graph)
                if (product := _product(found)) is not None and product.matrix in changed
            ]
        found = {product.matrix for some in self._products.values() for product in some}
        if changed - found:
            names = ", ".join(sorted(changed - found))
            raise UnsupportedError(f"--adapter: changes of {names} cannot be served: {ALONE}")

    def add(self, graphs: Signatures, directory: Path, scheme: PrecisionScheme) -> Signatures:
        """Adds the adapters to the graphs in ``directory``; returns their new signatures.

        ``scheme``: that of the matrices. Factors beside quantized ones have 16 bits: reading them
        takes most of their time, and they are rounded far less than the matrices.
        """
        if not self._adapters:
            return graphs
        is_quantized = scheme.matrices != WeightFormat.FLOAT
        return self._added(graphs, directory, Dtype.FLOAT16 if is_quantized else scheme.stored)

    def check(
        self,
        parity: Parity,
        fp32_folder: Path,
        directory: Path,
        graphs: Signatures,
        threshold: float,
    ) -> Parity:
        """Compares the graphs with each adapter with the eager module with its merged weights.

        Args:
            parity: the record without adapters.
            fp32_folder: has the traced graphs; it is missing if those are the bundle's.
            directory: the folder of the bundle's ``graphs``.
            threshold: the lowest cosine of any row of the bundle's graphs.

        Returns:
            ``parity`` with that of the adapters.

        Raises:
            ParityError: a graph does not compute what the eager module computes.
        """
        if not self._adapters:
            return parity
        exact, folder = graphs, directory
        if fp32_folder.exists():
            exact, folder = self._added(self._traced, fp32_folder, Dtype.FLOAT32), fp32_folder
        found = []
        for index, adapter in enumerate(self._adapters, 1):
            try:
                reference = compare_fp32(adapter.load(), folder, exact, adapter=index)
                cosine = min_cosine(reference, directory, graphs, threshold, index)
            except ParityError as error:
                raise ParityError(f"--adapter {adapter.spec.name}: {error}") from error
            found.append(
                AdapterParity(
                    name=adapter.spec.name,
                    max_absolute_error=reference.max_absolute_error,
                    greedy_tokens_compared=reference.tokens_compared,
                    greedy_tokens_equal=reference.tokens_equal,
                    min_cosine=cosine,
                )
            )
        return msgspec.structs.replace(parity, adapters=tuple(found))

    def _added(self, graphs: Signatures, directory: Path, stored: Dtype) -> Signatures:
        changed: Signatures = {}
        for name, graph in graphs.items():
            model = load_graph(directory / graph.file)
            editor = _Editor(model.graph, self._adapters, stored)
            editor.edit(self._products[name], len(graph.inputs))
            save_graph(model, directory / graph.file)
            changed[name] = msgspec.structs.replace(graph, inputs=(*graph.inputs, INPUT))
        return changed


def _product(found: ConstantMatMul) -> Product | None:
    """``found``, if its rows are tokens: ``[batch, length, inputs]`` or ``[1, chosen, inputs]``."""
    matrix, x, y = found.name.removeprefix(TRACED), found.x, found.node.outputs[0]
    if not x.name or not y.name or x.shape is None or len(x.shape) != 3:
        return None
    return Product(matrix, x.name, y.name, is_chosen=x.shape[0] == 1)


class _Editor:
    """Adds adapters to one graph."""

    def __init__(self, graph: ir.Graph, adapters: Sequence[ServedAdapter], stored: Dtype) -> None:
        self._graph, self._adapters, self._stored = graph, adapters, stored
        self._values = {value.name: value for node in graph for value in node.outputs}
        self._factors: dict[str, tuple[ir.Value, ir.Value]] = {}

    def edit(self, products: Sequence[Product], num_inputs: int) -> None:
        """``num_inputs``: the number of inputs that are no states, which come first."""
        tokens = self._graph.inputs[0]
        if tokens.shape is None:
            raise ValueError(f"{tokens.name} has no shape")
        rows = ir.Value(
            name=ADAPTERS,
            type=ir.TensorType(ir.DataType.INT32),
            shape=ir.Shape(tokens.shape[:1]),
        )
        self._graph.inputs.insert(num_inputs, rows)
        first = next(iter(self._graph))
        of_chosen = None
        if any(product.is_chosen for product in products):
            tape = Tape()
            of_chosen = self._of_chosen(tape, rows, tokens)
            self._insert(tape, first, before=True)
        for product in products:
            index = of_chosen if product.is_chosen else rows
            if index is not None:
                self._add(product, index)

    def _of_chosen(self, tape: Tape, rows: ir.Value, tokens: ir.Value) -> ir.Value:
        """The adapter ``[chosen]`` of each of ``logit_positions``, ``row * length + index``."""
        (positions,) = (x for x in self._graph.inputs if x.name == LOGIT_POSITIONS.name)
        length = tape.op("Shape", [tokens], {"start": 1, "end": 2})
        wide = tape.op("Cast", [positions], {"to": ir.DataType.INT64})
        row = tape.op("Div", [wide, length])
        chosen = tape.op("Gather", [rows, row], {"axis": 0}, output=ir.Value(name=CHOSEN))
        chosen.dtype, chosen.shape = ir.DataType.INT32, positions.shape
        return chosen

    def _add(self, product: Product, index: ir.Value) -> None:
        x, y = self._values[product.x], self._values[product.y]
        producer = y.producer()
        if producer is None or y.shape is None or y.dtype is None:
            raise ValueError(f"{product.y} has no known producer or type")
        tape = Tape()
        if product.matrix not in self._factors:
            self._factors[product.matrix] = self._constants(
                tape,
                product.matrix,
                int(y.shape[-1]),  # type: ignore[arg-type]
            )
        a, b = (
            tape.op("Gather", [factor, index], {"axis": 0})  # [rows, ...]
            for factor in self._factors[product.matrix]
        )
        if product.is_chosen:  # [1, chosen, inputs] as rows of one token
            x = tape.op("Transpose", [x], {"perm": [1, 0, 2]})
        change = tape.op("MatMul", [tape.op("MatMul", [x, a]), b])
        if product.is_chosen:
            change = tape.op("Transpose", [change], {"perm": [1, 0, 2]})
        total = tape.op("Add", [y, change])
        total.name, total.dtype, total.shape = f"{product.y}.adapted", y.dtype, y.shape
        added = set(tape.nodes)
        for use in list(y.uses()):
            if use.node not in added:
                use.node.replace_input_with(use.idx, total)
        self._insert(tape, producer, before=False)

    def _constants(self, tape: Tape, matrix: str, num_outputs: int) -> tuple[ir.Value, ir.Value]:
        a, b = stacked([one.factors.get(matrix, ()) for one in self._adapters], num_outputs)
        return (
            self._constant(tape, f"{TRACED}{matrix}.adapters.a", a),
            self._constant(tape, f"{TRACED}{matrix}.adapters.b", b),
        )

    def _constant(self, tape: Tape, name: str, array: NDArray[np.float32]) -> ir.Value:
        if self._stored == Dtype.FLOAT32:
            return constant(tape, name, array)
        small = constant(tape, name, array.astype(_STORED[self._stored]))
        return tape.op("Cast", [small], {"to": ir.DataType.FLOAT})

    def _insert(self, tape: Tape, node: ir.Node, *, before: bool) -> None:
        for value in tape.initializers:
            self._graph.register_initializer(value)
        if before:
            self._graph.insert_before(node, tape.nodes)
        else:
            self._graph.insert_after(node, tape.nodes)


def stacked(
    factors: Sequence[Sequence[Factors]], num_outputs: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The factors of one matrix, ``[adapters + 1, inputs, rank]`` and ``[.., rank, outputs]``.

    Ranks of the same columns are adjacent. Index 0, adapters without a change, ranks beyond an
    adapter's own, and other columns are zeros.
    """
    ranks: dict[tuple[int, int], int] = {}  # by the first column and the number of columns
    for each in (each for of_adapter in factors for each in of_adapter):
        key = (each.start, each.b.shape[1])
        ranks[key] = max(ranks.get(key, 0), each.a.shape[1])
    keys = sorted(ranks)
    ends = np.cumsum([ranks[key] for key in keys])
    first = {key: int(end) - ranks[key] for key, end in zip(keys, ends, strict=True)}
    num_inputs = next(len(each.a) for of_adapter in factors for each in of_adapter)
    a = np.zeros((len(factors) + 1, num_inputs, ends[-1]), np.float32)
    b = np.zeros((len(factors) + 1, ends[-1], num_outputs), np.float32)
    for index, of_adapter in enumerate(factors, 1):
        for each in of_adapter:
            row, (rank, width) = first[each.start, each.b.shape[1]], each.b.shape
            a[index, :, row : row + rank] = each.a.numpy()
            b[index, row : row + rank, each.start : each.start + width] = each.b.numpy()
    return a, b
