"""Attention and experts as ONNX Runtime's contrib operators, for export only.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
``GroupQueryAttention`` updates the cache in place if past and present are bound to the same
memory. Its ``seqlens_k`` is the number of valid keys after the run, minus one; it does not read
beyond them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, onnx

from model.config import Activation, AttentionConfig, ExpertsConfig, FeedForwardConfig
from model.kernels import AttentionOutput, ExpertWeights, KeyValue, PositionEncodings, Step
from model.recurrent_cells import CELLS, CellWeights, RecurrentOutput
from model.recurrent_config import CellKind
from model.relative_positions import RelativeValues
from model.windows import blocked_window_attention

DOMAIN = "com.microsoft"
# Head sizes of ``GroupQueryAttention`` are multiples of these; the second with rotary positions.
HEAD_MULTIPLE, ROTARY_HEAD_MULTIPLE = 8, 16
SOFTMAX_WEIGHTS = 2  # a value of the attribute ``qk_output``

# ``activation_type`` of ``MoE``, by activation and gating. Its "gelu" is the tanh approximation.
EXPERT_ACTIVATIONS = {
    (Activation.RELU, False): "relu",
    (Activation.GELU_TANH, False): "gelu",
    (Activation.SILU, False): "silu",
    (Activation.SILU, True): "swiglu",
}


class FusedKernels:
    """Implements :class:`model.kernels.ModelKernels`."""

    def bidirectional(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        positions: PositionEncodings,
        lengths: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if config.window is not None and not config.is_causal:
            if positions.bias is not None:
                raise ValueError("a bidirectional window with a relative bias is not implemented")
            return blocked_window_attention(qkv, config, positions, lengths, config.window, sinks)
        length = torch.scalar_tensor(qkv.shape[1], dtype=torch.int32)
        inputs = (qkv, None, None, None, None, lengths - 1, length, *_inputs_of(positions, sinks))
        attributes = {
            "causal": int(config.is_causal),
            "do_rotary": 0 if positions.rotary is None else 1,
        }
        kv_shape = (qkv.shape[0], config.num_kv_heads, qkv.shape[1], config.head_size)
        relative = positions.relative_values
        if relative is None:
            return _group_query_attention(qkv, inputs, config, kv_shape, attributes).context
        is_seen = torch.arange(qkv.shape[1]) < lengths[:, None, None, None]
        return _relative_attention(
            qkv, inputs, config, kv_shape, attributes, relative, is_seen
        ).context

    def causal(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        positions: PositionEncodings,
        past: KeyValue | None,
        step: Step,
        sinks: Tensor | None = None,
    ) -> AttentionOutput:
        if past is None:
            raise ValueError("the fused decoder needs a cache")
        lengths = (step.last_positions, step.max_total_length)
        inputs = (qkv, None, None, *past, *lengths, *_inputs_of(positions, sinks))
        attributes = {"do_rotary": 0 if positions.rotary is None else 1}
        relative = positions.relative_values
        if relative is None:
            return _group_query_attention(qkv, inputs, config, past.key.shape, attributes)
        is_seen = relative.distances[:, None] <= 0
        return _relative_attention(
            qkv, inputs, config, past.key.shape, attributes, relative, is_seen
        )

    def cross(
        self,
        query: Tensor,
        config: AttentionConfig,
        source: KeyValue,
        step: Step,
        bias: Tensor | None = None,
    ) -> AttentionOutput:
        _, max_length = step.source()
        no_new_tokens = query[:, :0, : config.num_kv_heads * config.head_size]
        lengths = (step.last_source_positions, max_length)
        inputs: tuple[Tensor | None, ...]
        inputs = (query, no_new_tokens, no_new_tokens, *source, *lengths)
        if bias is not None:
            inputs = (*inputs, *_inputs_of(PositionEncodings(bias=bias)))
        return _group_query_attention(query, inputs, config, source.key.shape, {"causal": 0})

    def experts(
        self,
        x: Tensor,
        scores: Tensor,
        weights: ExpertWeights,
        feed_forward: FeedForwardConfig,
        config: ExpertsConfig,
    ) -> Tensor:
        kind = (feed_forward.activation, feed_forward.gated)
        if kind not in EXPERT_ACTIVATIONS:
            raise ValueError(f"experts with {kind[0]} are not implemented")
        attributes: dict[str, Any] = {
            "activation_type": EXPERT_ACTIVATIONS[kind],
            "k": config.active,
            "normalize_routing_weights": 1,
        }
        if feed_forward.gated:
            # gate * sigmoid(alpha * gate) * (value + beta), for interleaved outputs
            attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}
        if (gate := config.clamped_gate) is not None:
            attributes |= {"activation_alpha": gate.slope, "activation_beta": 1.0}
            attributes["swiglu_limit"] = gate.limit
        mixed: Tensor = onnx.ops.symbolic(
            f"{DOMAIN}::MoE",
            (x, scores.flatten(0, 1), *weights),
            attrs=attributes,
            dtype=x.dtype,
            shape=x.shape,
            version=1,
        )
        if not config.normalized:
            # Without normalize_routing_weights, the CPU kernel overwrites its input if it runs
            # in place, and returns zeros (ONNX Runtime 1.31.1).
            mixed = mixed * scores.softmax(-1).topk(config.active, -1).values.sum(-1, keepdim=True)
        return mixed

    def recurrent(
        self, x: Tensor, lengths: Tensor, weights: CellWeights, kind: CellKind, *, reverse: bool
    ) -> RecurrentOutput:
        size, cell = weights.recurrent.shape[0], CELLS[kind]

        def gates(weight: Tensor) -> Tensor:
            """``[..., gates * size]`` to ``[1, gates * size, ...]``, in the operator's order."""
            parts = weight.chunk(cell.num_gates, -1)
            return torch.cat([parts[index] for index in cell.onnx_order], -1).T[None]

        biases = torch.cat([gates(weights.input_bias), gates(weights.recurrent_bias)], 1)
        inputs = (x.transpose(0, 1), gates(weights.input), gates(weights.recurrent), biases)
        attributes: dict[str, Any] = {
            "hidden_size": size,
            "direction": "reverse" if reverse else "forward",
        }
        if kind == CellKind.GRU:
            attributes["linear_before_reset"] = 1
        last = (1, x.shape[0], size)
        outputs, *state = onnx.ops.symbolic_multi_out(
            kind.upper(),
            (*inputs, lengths),
            attrs=attributes,
            dtypes=(x.dtype,) * (1 + len(cell.state)),
            shapes=((x.shape[1], *last), *(last for _ in cell.state)),
        )
        return RecurrentOutput(outputs[:, 0].transpose(0, 1), tuple(part[0] for part in state))


def _inputs_of(
    positions: PositionEncodings, sinks: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """``cos_cache``, ``sin_cache``, ``position_ids`` (unused), ``attention_bias``, ``head_sink``.

    The last is left out if there are no sinks.
    """
    inputs = (*(positions.rotary or (None, None)), None, positions.bias)
    return inputs if sinks is None else (*inputs, sinks)


def _group_query_attention(
    x: Tensor,
    inputs: tuple[Tensor | None, ...],
    config: AttentionConfig,
    kv_shape: Sequence[int | torch.SymInt],
    attributes: dict[str, int],
) -> AttentionOutput:
    context, key, value = _attention_outputs(x, inputs, config, kv_shape, attributes)
    return AttentionOutput(context, KeyValue(key, value))


def _relative_attention(
    x: Tensor,
    inputs: tuple[Tensor | None, ...],
    config: AttentionConfig,
    kv_shape: Sequence[int | torch.SymInt],
    attributes: dict[str, int],
    relative: RelativeValues,
    is_seen: Tensor,
) -> AttentionOutput:
    """Attention whose operator also returns its weights, which multiply the relative vectors.

    ``is_seen`` is broadcast to ``[batch, heads, length, total]``: the operator leaves the weights
    of keys past a row's own unwritten.
    """
    total = relative.distances.shape[2]
    context, key, value, weights = _attention_outputs(
        x, inputs, config, kv_shape, {**attributes, "qk_output": SOFTMAX_WEIGHTS}, total
    )
    context = context + relative.context(weights.masked_fill(~is_seen, 0.0))
    return AttentionOutput(context, KeyValue(key, value))


def _attention_outputs(
    x: Tensor,
    inputs: tuple[Tensor | None, ...],
    config: AttentionConfig,
    kv_shape: Sequence[int | torch.SymInt],
    attributes: dict[str, int],
    num_keys: int | torch.SymInt | None = None,
) -> Sequence[Tensor]:
    """Context, keys and values; with ``num_keys`` also the weights."""
    optional: dict[str, int | float] = {**attributes}
    if config.scale is not None:
        optional["scale"] = config.scale
    if config.soft_cap is not None:
        optional["softcap"] = config.soft_cap
    if config.window is not None:
        optional["local_window_size"] = config.window
    shapes: list[Sequence[int | torch.SymInt]] = [
        (*x.shape[:2], config.num_heads * config.head_size),
        kv_shape,
        kv_shape,
    ]
    if num_keys is not None:
        shapes.append((x.shape[0], config.num_heads, x.shape[1], num_keys))
    return onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::GroupQueryAttention",
        inputs,
        attrs={
            "num_heads": config.num_heads,
            "kv_num_heads": config.num_kv_heads,
            **optional,
        },
        dtypes=[x.dtype] * len(shapes),
        shapes=shapes,
        version=1,
    )
