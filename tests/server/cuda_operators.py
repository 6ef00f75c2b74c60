"""The operators of rewritten graphs in NumPy: those of native/cuda/operators.cc, and attention."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from scripts.build_kernels import is_supported
from server.runtime.memory import Array
from server.runtime.rewriting.nodes import DOMAIN
from tests.server.cuda_graphs import MICROSOFT

NEEDS_LIBRARY = pytest.mark.skipif(not is_supported(), reason="this system has no such library")


def run(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a model by the definitions of the operators."""
    evaluator = ReferenceEvaluator(model, new_ops=OPERATORS)
    outputs: Any = evaluator.run(None, dict(inputs))
    return dict(zip(evaluator.output_names, outputs, strict=True))


class _Operator(OpRun):
    op_domain = DOMAIN


def _normalize(
    x: Array, scale: Array, bias: Array | None, epsilon: float, is_centered: int = 0
) -> Array:
    normal = x.astype(np.float32)
    if is_centered:
        normal -= normal.mean(-1, keepdims=True)
    normal /= np.sqrt(np.square(normal).mean(-1, keepdims=True) + np.float32(epsilon))
    normal *= scale.astype(np.float32)
    if bias is not None:
        normal += bias.astype(np.float32)
    return normal.astype(x.dtype)


class NormFp16(_Operator):
    def _run(
        self,
        x: Array,
        x_bias: Array | None = None,
        residual: Array | None = None,
        scale: Array | None = None,
        bias: Array | None = None,
        epsilon: float = 0,
        is_centered: int = 0,
    ) -> tuple[Array, ...]:
        assert scale is not None
        for added in (x_bias, residual):
            x = x if added is None else x + added
        return _normalize(x, scale, bias, epsilon, is_centered), x


class NormBf16(NormFp16):
    pass


def _activate(x: Array, kind: int) -> Array:
    """SiLU, ReLU, GELU, and GELU by the hyperbolic tangent."""
    if kind == 0:
        return np.asarray(x / (1 + np.exp(-x)))
    if kind == 1:
        return np.asarray(np.maximum(x, 0))
    if kind == 2:
        return np.asarray(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2)
    assert kind == 3
    return np.asarray(x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2)


class ActivationFp16(_Operator):
    def _run(
        self, x: Array, bias: Array | None = None, kind: int = 0, is_gated: int = 0
    ) -> tuple[Array]:
        wide = (x if bias is None else x + bias).astype(np.float32)
        gate, factor = np.split(wide, 2, -1) if is_gated else (wide, np.ones_like(wide))
        return ((_activate(gate, kind) * factor).astype(x.dtype),)


class ActivationBf16(ActivationFp16):
    pass


class SplitFp16(_Operator):
    def _run(
        self,
        x: Array,
        bias: Array | None = None,
        cosines: Array | None = None,
        sines: Array | None = None,
        num_heads: int = 0,
        num_kv_heads: int = 0,
        is_interleaved: int = 0,
    ) -> tuple[Array, ...]:
        biased = x if bias is None else x + bias
        rotate = partial(_rotate, cosines=cosines, sines=sines, is_interleaved=is_interleaved)
        return _split_heads(biased, num_heads, num_kv_heads, rotate)


def _split_heads(
    x: Array, num_heads: int, num_kv_heads: int, rotate: Callable[[Array], Array]
) -> tuple[Array, ...]:
    """Queries, keys and values, each with as many heads as queries."""
    heads = x.reshape(*x.shape[:2], num_heads + 2 * num_kv_heads, -1)
    queries, keys, values = np.split(heads, (num_heads, num_heads + num_kv_heads), 2)
    group = num_heads // num_kv_heads
    made = (rotate(queries), rotate(keys).repeat(group, 2), values.repeat(group, 2))
    return tuple(each.reshape(*x.shape[:2], -1).astype(x.dtype) for each in made)


def _rotate(heads: Array, cosines: Array | None, sines: Array | None, is_interleaved: int) -> Array:
    """Rotary positions of ``heads [texts, length, heads, head size]``, in fp32."""
    if cosines is None or sines is None:
        return heads
    length, half = heads.shape[1], cosines.shape[1]
    cosine, sine = (angles[:length, None].astype(np.float32) for angles in (cosines, sines))
    rotated = heads.astype(np.float32)
    places = np.arange(2 * half)
    firsts, seconds = (places[::2], places[1::2]) if is_interleaved else np.split(places, 2)
    one, other = rotated[..., firsts], rotated[..., seconds]
    rotated[..., firsts] = one * cosine - other * sine
    rotated[..., seconds] = other * cosine + one * sine
    return rotated


class SplitBf16(SplitFp16):
    pass


class LinearFp16(_Operator):
    def _run(
        self,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        residual: Array | None = None,
        scale: Array | None = None,
        activation: int = -1,
        is_gated: int = 0,
        epsilon: float = 0,
    ) -> tuple[Array, ...]:
        added = x if residual is None else x + residual
        if scale is not None:
            x = _normalize(added, scale, None, epsilon)
        wide = x.astype(np.float32) @ weight.astype(np.float32).T
        if bias is not None:
            wide += bias.astype(np.float32)
        gate, factor = np.split(wide, 2, -1) if is_gated else (wide, np.float32(1))
        if activation >= 0:
            gate = _activate(gate, activation)
        return (gate * factor).astype(x.dtype), added


class LinearBf16(LinearFp16):
    pass


class PoolFp16(_Operator):
    def _run(
        self, x: Array, lengths: Array, is_normalized: int = 0, min_norm: float = 0
    ) -> tuple[Array]:
        wide = x.astype(np.float32)
        pairs = zip(wide, lengths, strict=True)
        means = np.stack([tokens[:length].mean(0) for tokens, length in pairs])
        if is_normalized:
            means /= np.maximum(np.linalg.norm(means, axis=-1, keepdims=True), min_norm)
        return (means,)


class PoolBf16(PoolFp16):
    pass


class KeyRangesFp16(_Operator):
    def _run(self, x: Array, lengths: Array) -> tuple[Array]:
        starts = np.arange(len(lengths) + 1) * x.shape[1]
        return (np.concatenate([lengths, starts, starts]).astype(np.int32),)


class BestToken(_Operator):
    def _run(self, logits: Array, suppressed: Array | None = None) -> tuple[Array]:
        if suppressed is not None:
            logits = np.where((suppressed == 1) & ~np.isnan(logits), -np.inf, logits)
        best = logits.argmax(-1)
        are_finite = np.isfinite(np.take_along_axis(logits, best[:, None], -1)[:, 0])
        return (np.where(are_finite, best, -1),)


class TopTokens(_Operator):
    def _run(
        self,
        logits: Array,
        rows: Array | None = None,
        targets: Array | None = None,
        suppressed: Array | None = None,
        count: int = 0,
        suppressed_logit: float = 0.0,
    ) -> tuple[Array]:
        if rows is not None:
            logits = logits[rows]
        if suppressed is not None:
            logits = np.where(suppressed == 1, np.float32(suppressed_logit), logits)
        are_numbers = ~np.isnan(logits)
        order = np.lexsort((-np.where(are_numbers, logits, np.inf), are_numbers))[:, :count]
        top = np.take_along_axis(logits, order, -1)
        with np.errstate(invalid="ignore"):
            total = np.exp(logits - top[:, :1]).sum(-1, keepdims=True, dtype=np.float64)
        columns = [top, order, total]
        if targets is not None:
            columns.append(np.take_along_axis(logits, targets[:, None], -1))
        return (np.concatenate(columns, -1).astype(np.float32),)


class Advance(_Operator):
    def _run(
        self, best_tokens: Array, num_cached_tokens: Array, is_live: Array
    ) -> tuple[Array, Array]:
        next_tokens = np.where(is_live, np.maximum(best_tokens, 0), 0)
        return next_tokens[:, None], num_cached_tokens + is_live


class Extreme(_Operator):
    def _run(self, x: Array, is_min: int = 0, is_last: int = 0) -> tuple[Array]:
        reduce = np.min if is_min else np.max
        return (reduce(x, axis=-1, keepdims=True) if is_last else reduce(x, axis=1),)


def _attend(
    parts: Sequence[Array],
    lengths: Array,
    heads: int,
    scale: float | None,
    masks: Iterable[Array] = (),
) -> Array:
    """Attention among the first tokens of each row, in fp32; padding attends too."""
    query, key, value = (
        part.astype(np.float32).reshape(*part.shape[:2], heads, -1).swapaxes(1, 2) for part in parts
    )
    scores = query @ key.swapaxes(2, 3) * (scale or query.shape[-1] ** -0.5)
    for mask in masks:
        scores = scores + mask
    is_padding = np.arange(key.shape[2]) >= lengths[:, None, None, None]
    scores = np.where(is_padding, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    attended = weights / weights.sum(-1, keepdims=True) @ value
    merged: Array = attended.swapaxes(1, 2).reshape(parts[0].shape).astype(parts[0].dtype)
    return merged


class GroupQueryAttention(OpRun):
    """Computes an encoder's attention: no cache, packed queries, keys and values.

    It follows the lengths of texts, as ONNX Runtime does on CPUs.
    """

    op_domain = MICROSOFT

    def _run(
        self,
        packed: Array,
        *others: Array | None,
        num_heads: int = 0,
        kv_num_heads: int = 0,
        causal: int = 1,
        rotary_interleaved: int = 0,
        **attributes: Any,
    ) -> tuple[Array]:
        last_positions, cosines, sines, bias = (
            others[index] if len(others) > index else None for index in (4, 6, 7, 9)
        )
        assert last_positions is not None
        rotate = partial(_rotate, cosines=cosines, sines=sines, is_interleaved=rotary_interleaved)
        parts = _split_heads(packed, num_heads, kv_num_heads, rotate)
        masks = [] if bias is None else [bias.astype(np.float32)]
        if causal:
            masks.append(np.triu(np.full((packed.shape[1],) * 2, -np.inf, np.float32), 1))
        scale = attributes.get("scale")
        return (_attend(parts, last_positions + 1, num_heads, scale, masks),)


class EncoderAttentionFp16(_Operator):
    def _run(
        self,
        query: Array,
        lengths: Array,
        bias: Array | None = None,
        key: Array | None = None,
        value: Array | None = None,
        num_heads: int = 0,
        num_kv_heads: int = 0,
        scale: float = 0.0,
    ) -> tuple[Array]:
        parts: Sequence[Array]
        if key is None or value is None:
            biased = query if bias is None else query + bias
            parts = _split_heads(biased, num_heads, num_kv_heads, lambda heads: heads)
        else:
            group = num_heads // num_kv_heads
            keys, values = (
                part.reshape(*part.shape[:2], num_kv_heads, -1).repeat(group, 2)
                for part in (key, value)
            )
            parts = (query, keys.reshape(query.shape), values.reshape(query.shape))
        return (_attend(parts, lengths, num_heads, scale),)


class EncoderAttentionBf16(EncoderAttentionFp16):
    pass


class MultiHeadAttention(OpRun):
    op_domain = MICROSOFT

    def _run(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        lengths: Array | None = None,
        num_heads: int = 0,
        scale: float | None = None,
    ) -> tuple[Array]:
        assert bias is None
        assert lengths is not None
        texts, length = query.shape[:2]
        if len(lengths) != texts:  # then where texts begin, twice
            starts = np.arange(texts + 1) * length
            np.testing.assert_array_equal(lengths[texts:], np.tile(starts, 2))
        return (_attend((query, key, value), lengths[:texts], num_heads, scale),)


OPERATORS: list[type[OpRun]] = [
    *(NormFp16, NormBf16, ActivationFp16, ActivationBf16, SplitFp16, SplitBf16),
    *(
        LinearFp16,
        LinearBf16,
        BestToken,
        TopTokens,
        Advance,
        Extreme,
        PoolFp16,
        PoolBf16,
        KeyRangesFp16,
    ),
    *(GroupQueryAttention, MultiHeadAttention, EncoderAttentionFp16, EncoderAttentionBf16),
]
