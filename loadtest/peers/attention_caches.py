"""One decode step of attention over two cache layouts: a slot per sequence, and pages.

``{"op": "attend"}`` with ``device``, ``cache`` (``slots`` or ``paged``), ``batch``,
``num_cached`` (cached tokens per sequence), ``capacity`` (maximum tokens per sequence),
``num_heads``, ``num_kv_heads``, ``head_size`` and ``rounds``. Reply: ``seconds``, the median of a
step on bound tensors, and ``max_error`` relative to attention in fp64.

Slots use ``GroupQueryAttention``, which updates keys and values in place. Pages use
``PagedAttention``, which has no CPU kernel; the pages of a sequence are scattered at random.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

import time
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from loadtest.peers.json_lines import Message, serve

PAGE_TOKENS = 256  # flash attention needs pages of a multiple of this
_WARM_UP = 5
_CHECKED_ROWS = 4


@dataclass(frozen=True)
class Step:
    """The shapes of a step, and its arrays: ``[batch, tokens, heads, head_size]``."""

    batch: int
    num_cached: int
    capacity: int
    num_heads: int
    num_kv_heads: int
    head_size: int

    def numbers(self, seed: int, *shape: int) -> Any:
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    def new(self) -> tuple[Any, Any, Any]:
        """Query, key and value of each row's next token."""
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        found = [
            self.numbers(seed, self.batch, 1, count, self.head_size)
            for seed, count in enumerate(heads)
        ]
        return found[0], found[1], found[2]

    def cached(self) -> tuple[Any, Any]:
        """Keys and values of a few sequences, which all others repeat."""
        shape = (_CHECKED_ROWS, self.num_cached, self.num_kv_heads, self.head_size)
        rows = np.arange(self.batch) % _CHECKED_ROWS
        return self.numbers(3, *shape)[rows], self.numbers(4, *shape)[rows]

    def expected(self, dtype: Any) -> Any:
        """Attention of the first rows in fp64, inputs as ``dtype``: ``[rows, heads, H]``."""
        rows = min(self.batch, _CHECKED_ROWS)
        query, key, value = (_rounded(each[:rows], dtype) for each in self.new())
        keys, values = (_rounded(each[:rows], dtype) for each in self.cached())
        keys, values = (
            np.concatenate([old, new], 1).repeat(self.num_heads // self.num_kv_heads, 2)
            for old, new in ((keys, key), (values, value))
        )
        scores = np.einsum("bhd,bthd->bht", query[:, 0], keys) / self.head_size**0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bht,bthd->bhd", weights / weights.sum(-1, keepdims=True), values)


def attend(message: Message) -> Message:
    """Runs a step. Raises ONNX Runtime's error if there is no kernel."""
    device, _, index = message["device"].partition(":")
    step = Step(**{each.name: message[each.name] for each in fields(Step)})
    # Pages are 16-bit on all devices; slots on a CPU are 32-bit.
    is_float = device == "cpu" and message["cache"] == "slots"
    dtype = np.float32 if is_float else np.float16
    operator, described = _CACHES[message["cache"]]
    inputs, aliases, on_host = described(step)
    node = onnx.helper.make_node(
        operator,
        list(inputs),
        ["output", *aliases],
        domain="com.microsoft",
        num_heads=step.num_heads,
        kv_num_heads=step.num_kv_heads,
    )
    session = _session(node, inputs, dtype, device, int(index or 0))
    binding = session.io_binding()
    held = {}
    for name, array in inputs.items():
        stored = array.astype(dtype) if array.dtype == np.float32 else array
        location = ("cpu", 0) if name in on_host else (device, int(index or 0))
        held[name] = ort.OrtValue.ortvalue_from_numpy(stored, *location)
        binding.bind_ortvalue_input(name, held[name])
    for output, source in aliases.items():
        binding.bind_ortvalue_output(output, held[source])
    shape = [*inputs["query"].shape[:-1], step.num_heads * step.head_size]
    output = ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, device, int(index or 0))
    binding.bind_ortvalue_output("output", output)
    times = []
    for _ in range(_WARM_UP + message["rounds"]):
        started = time.perf_counter()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        times.append(time.perf_counter() - started)
    expected = step.expected(dtype)
    found = output.numpy().reshape(step.batch, step.num_heads, step.head_size)[: len(expected)]
    return {
        "seconds": median(times[_WARM_UP:]),
        "max_error": float(np.abs(found - expected).max()),
    }


# Inputs; for each output but the first, the input that it aliases; inputs in host memory.
Described = tuple[dict[str, Any], dict[str, str], frozenset[str]]


def _slots(step: Step) -> Described:
    query, key, value = (each.reshape(step.batch, 1, -1) for each in step.new())
    shape = (step.batch, step.num_kv_heads, step.capacity, step.head_size)
    inputs = {"query": query, "key": key, "value": value}
    for name, cached in zip(("past_key", "past_value"), step.cached(), strict=True):
        inputs[name] = np.zeros(shape, np.float32)
        inputs[name][:, :, : step.num_cached] = cached.transpose(0, 2, 1, 3)
    # Length including the new token, minus one.
    inputs["seqlens_k"] = np.full(step.batch, step.num_cached, np.int32)
    inputs["total_sequence_length"] = np.array([step.num_cached + 1], np.int32)
    aliases = {"present_key": "past_key", "present_value": "past_value"}
    return inputs, aliases, frozenset({"total_sequence_length"})


def _paged(step: Step) -> Described:
    query, key, value = (each.reshape(step.batch, -1) for each in step.new())
    pages_of_row = -(-step.capacity // PAGE_TOKENS)
    num_pages = step.batch * pages_of_row
    table = np.random.default_rng(5).permutation(num_pages).reshape(step.batch, pages_of_row)
    inputs = {"query": query, "key": key, "value": value}
    for name, cached in zip(("key_cache", "value_cache"), step.cached(), strict=True):
        pages = np.zeros((num_pages, PAGE_TOKENS, step.num_kv_heads, step.head_size), np.float32)
        for token in range(0, step.num_cached, PAGE_TOKENS):
            part = cached[:, token : token + PAGE_TOKENS]
            pages[table[:, token // PAGE_TOKENS], : part.shape[1]] = part
        inputs[name] = pages
    inputs["cumulative_sequence_length"] = np.arange(step.batch + 1, dtype=np.int32)
    inputs["past_seqlens"] = np.full(step.batch, step.num_cached, np.int32)
    inputs["block_table"] = table.astype(np.int32)
    aliases = {"key_cache_out": "key_cache", "value_cache_out": "value_cache"}
    return inputs, aliases, frozenset()


_CACHES = {"slots": ("GroupQueryAttention", _slots), "paged": ("PagedAttention", _paged)}


def _session(
    node: onnx.NodeProto, inputs: dict[str, Any], dtype: Any, device: str, index: int
) -> ort.InferenceSession:
    float_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def described(name: str, array: Any) -> onnx.ValueInfoProto:
        kind = onnx.TensorProto.INT32 if array.dtype == np.int32 else float_type
        return onnx.helper.make_tensor_value_info(name, kind, array.shape)

    graph = onnx.helper.make_graph(
        [node],
        "step",
        [described(name, array) for name, array in inputs.items()],
        [onnx.helper.make_tensor_value_info(name, float_type, None) for name in node.output],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    providers: list[Any] = ["CPUExecutionProvider"]
    if device == "cuda":
        ort.preload_dlls()
        providers = [("CUDAExecutionProvider", {"device_id": index})]
    session = ort.InferenceSession(model.SerializeToString(), providers=providers)
    if device == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise RuntimeError("ONNX Runtime does not use CUDA here")
    return session


def _rounded(numbers: Any, dtype: Any) -> Any:
    return numbers.astype(dtype).astype(np.float64)


if __name__ == "__main__":
    serve({"attend": attend})
