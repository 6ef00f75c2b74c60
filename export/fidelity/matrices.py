"""The relative error of each linear map's output on the same inputs, to find the worst matrices.

The bundle's graphs run once over real text and return the input and the output of every linear
map, whose names conversions keep from the fp32 graphs. The output is compared with the product of
the same input and the fp32 matrix, so that errors of earlier layers do not count. Experts of
mixtures are not linear maps of the graph and have no figures.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.constant_matmuls import constant_matmuls
from export.decoding import DecodingInputs, decode_in_graph, prefill_source
from export.encoding import EncoderInputs, encode_in_graph
from export.fidelity.subject import GraphFolder
from export.graph_files import load_graph
from export.quantize import TRACED
from export.runtime import Array, DecodeSession, Floats, Session
from model.bundle import GraphSpec

NUM_ROWS, NUM_STEPS = 4, 8  # for an encoder-decoder
MAX_TOKENS, MIN_TOKENS = 64, 8  # per row of a decoder
MAX_VALUES = 1 << 24  # inputs and outputs of all linear maps in memory

Values = dict[str, list[Floats]]  # by name, one array per run


@dataclass(frozen=True)
class LinearMap:
    """The names of a matrix, of the value that it multiplies, and of the product."""

    matrix: str
    x: str
    y: str

    @property
    def name(self) -> str:
        """The matrix's name without suffix, such as ``decoder.layers.3.mixer.qkv``."""
        return self.matrix.removeprefix(TRACED).removesuffix(".weight")


def kind_of(name: str) -> str:
    """The kind of the matrix ``name``: its name without the layer, ``mixer.qkv``."""
    parts = name.split(".")
    return ".".join(parts[3:] if "layers" in parts[:2] else parts)


def encoder_errors(
    reference: GraphFolder, other: GraphFolder, inputs: EncoderInputs
) -> dict[str, float]:
    """The relative error of each linear map of the graph ``encode``, by name."""
    with _recording(reference, other, "encode") as recording:
        encode_in_graph(recording.encoder(), inputs)
        return recording.errors()


def decoder_errors(
    reference: GraphFolder, other: GraphFolder, inputs: DecodingInputs, tokens: NDArray[np.int64]
) -> dict[str, float]:
    """The relative error of each linear map of all graphs, by name.

    Args:
        inputs: a few rows suffice.
        tokens: ``[rows, steps]``, the answers.
    """
    if inputs.sources is None:
        return _causal_errors(reference, other, [*inputs.prompts[0], *tokens[0].tolist()])
    num_steps = min(NUM_STEPS, tokens.shape[1])
    sources = inputs.sources[:NUM_ROWS]
    few = DecodingInputs(prompts=inputs.prompts[:NUM_ROWS], num_steps=num_steps, sources=sources)
    errors: dict[str, float] = {}
    with _recording(reference, other, "encode") as recording:
        encoder = recording.encoder()
        decoder = other.decoder(len(sources), few.capacity, few.source_capacity)
        prefill_source(encoder, decoder, sources)
        errors |= recording.errors()
    with _recording(reference, other, "decode") as recording:
        decoder = recording.decoder(len(sources), few.capacity, few.source_capacity)
        prefill_source(other.encoder(), decoder, sources)
        decode_in_graph(decoder, few, tokens[:NUM_ROWS, :num_steps])
        return errors | recording.errors()


def _causal_errors(reference: GraphFolder, other: GraphFolder, row: list[int]) -> dict[str, float]:
    with _recording(reference, other, "decode") as recording:
        length = min(MAX_TOKENS, max(MIN_TOKENS, MAX_VALUES // recording.size_of_token))
        inputs = DecodingInputs(prompts=[row[:length]], num_steps=1)
        decode_in_graph(recording.decoder(1, inputs.capacity, 1), inputs)
        return recording.errors()


@dataclass(frozen=True)
class _Recording:
    """A graph that also returns the inputs and outputs of its linear maps."""

    graph: GraphSpec
    directory: Path
    maps: list[LinearMap]
    weights: Mapping[str, ir.Value]
    transposed: frozenset[str]
    values: Values

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for one in self.maps for name in (one.x, one.y)))

    @property
    def size_of_token(self) -> int:
        """Number of values of all linear maps for one token."""
        return max(1, sum(sum(_array(self.weights[one.matrix]).shape) for one in self.maps))

    def encoder(self) -> Session:
        return _RecordingSession(self)

    def decoder(self, num_slots: int, capacity: int, source_capacity: int) -> DecodeSession:
        return _RecordingDecoder(self, num_slots, capacity, source_capacity)

    def take(self, outputs: Mapping[str, Floats]) -> None:
        for name in self.names:
            # A copy: an output that is also a state, as in recurrent layers, is in the state's
            # buffer, which the next step overwrites.
            self.values[name].append(np.array(outputs[name], np.float32))

    def errors(self) -> dict[str, float]:
        """``|y - x W| / |x W|`` over all runs."""
        sums: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(2))
        for one in self.maps:
            weight = _array(self.weights[one.matrix])
            weight = weight.T if one.y in self.transposed else weight
            for x, y in zip(self.values[one.x], self.values[one.y], strict=True):
                expected = x @ weight
                squares = [np.square(part, dtype=np.float64) for part in (y - expected, expected)]
                sums[one.name] += [part.sum() for part in squares]
        return {
            name: float(np.sqrt(error / max(total, np.finfo(np.float64).tiny)))
            for name, (error, total) in sums.items()
        }


class _RecordingSession(Session):
    """``encode`` with recorded runs; :meth:`run` does not return the recorded values."""

    def __init__(self, recording: _Recording) -> None:
        super().__init__(recording.directory, recording.graph)
        self._recording = recording

    def run(self, **inputs: Array) -> dict[str, Floats]:
        outputs = self.run_outputs(self._recording.names, **inputs)
        self._recording.take(outputs)
        return {spec.name: outputs[spec.name] for spec in self.graph.outputs}


class _RecordingDecoder(DecodeSession):
    """``decode`` with recorded steps."""

    def __init__(
        self, recording: _Recording, num_slots: int, capacity: int, source_capacity: int
    ) -> None:
        super().__init__(
            recording.directory,
            recording.graph,
            num_slots=num_slots,
            capacity=capacity,
            source_capacity=source_capacity,
        )
        self._recording = recording

    def step(self, first_slot: int = 0, **inputs: Array) -> Floats:
        names = dict.fromkeys(["logits", *self._recording.names])
        outputs = self.step_outputs(list(names), first_slot, **inputs)
        self._recording.take(outputs)
        return outputs["logits"]


@contextmanager
def _recording(reference: GraphFolder, other: GraphFolder, name: str) -> Iterator[_Recording]:
    graph = other.graphs[name]
    fp32 = load_graph(reference.directory / reference.graphs[name].file)
    model = load_graph(other.directory / graph.file)
    values = {value.name: value for node in model.graph for value in node.outputs}
    maps, weights, transposed = [], {}, set()
    for product in constant_matmuls(fp32.graph):
        x, y = product.x.name or "", product.node.outputs[0].name or ""
        if x in values and y in values and product.matrix.name:
            maps.append(LinearMap(product.matrix.name, x, y))
            weights[product.matrix.name] = product.matrix
            if product.is_transposed:
                transposed.add(y)
    existing = {value.name for value in model.graph.outputs}
    for value_name in dict.fromkeys(name for one in maps for name in (one.x, one.y)):
        value = values[value_name]
        if value_name not in existing:
            value.type = value.type or ir.TensorType(ir.DataType.FLOAT)
            model.graph.outputs.append(value)
    path = other.directory / f"recorded.{graph.file}"
    try:
        ir.save(model, path)  # the weights stay where they are
        yield _Recording(
            msgspec.structs.replace(graph, file=path.name),
            other.directory,
            maps,
            weights,
            frozenset(transposed),
            defaultdict(list),
        )
    finally:
        path.unlink(missing_ok=True)


def _array(value: ir.Value) -> NDArray[np.float32]:
    if value.const_value is None:
        raise ValueError(f"{value.name} is not a constant")
    array: NDArray[np.float32] = value.const_value.numpy()
    return array
