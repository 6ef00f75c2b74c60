"""Attention as ONNX Runtime's own operators, for export only.

Semantics: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
``GroupQueryAttention`` reads and writes the cache in place where past and present are
bound to the same memory. Its ``seqlens_k`` is the number of valid keys after the run,
less one; it reads nothing behind them.
"""

from torch import Tensor, onnx

from model.config import AttentionConfig
from model.eager import split_qkv
from model.kernels import Attended, KeyValue, RotaryTables, Step

DOMAIN = "com.microsoft"


class FusedKernels:
    """Implements :class:`model.kernels.AttentionKernels`."""

    def bidirectional(
        self, qkv: Tensor, config: AttentionConfig, rotary: RotaryTables | None, lengths: Tensor
    ) -> Tensor:
        if rotary is not None or config.num_kv_heads != config.num_heads:
            raise NotImplementedError(
                "encoders with rotary positions or grouped heads have no fused attention yet"
            )
        query, key, value = split_qkv(qkv, config)
        return onnx.ops.symbolic(
            f"{DOMAIN}::MultiHeadAttention",
            (query, key, value, None, lengths),
            attrs={"num_heads": config.num_heads},
            dtype=qkv.dtype,
            shape=query.shape,
            version=1,
        )

    def causal(
        self,
        qkv: Tensor,
        config: AttentionConfig,
        rotary: RotaryTables | None,
        past: KeyValue | None,
        step: Step,
    ) -> Attended:
        if past is None:
            raise ValueError("the fused decoder runs over a cache")
        tables = () if rotary is None else tuple(rotary)
        inputs = (qkv, None, None, *past, step.last_positions, step.max_total_length, *tables)
        return _group_query_attention(
            qkv, inputs, config, past, {"do_rotary": 0 if rotary is None else 1}
        )

    def cross(
        self, query: Tensor, config: AttentionConfig, memory: KeyValue, step: Step
    ) -> Attended:
        _, max_length = step.source()
        nothing = query[:, :0, : config.num_kv_heads * config.head_size]
        inputs = (query, nothing, nothing, *memory, step.last_source_positions, max_length)
        return _group_query_attention(query, inputs, config, memory, {"causal": 0})


def _group_query_attention(
    x: Tensor,
    inputs: tuple[Tensor | None, ...],
    config: AttentionConfig,
    memory: KeyValue,
    attributes: dict[str, int],
) -> Attended:
    context, key, value = onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::GroupQueryAttention",
        inputs,
        attrs={
            "num_heads": config.num_heads,
            "kv_num_heads": config.num_kv_heads,
            **attributes,
        },
        dtypes=(x.dtype, memory.key.dtype, memory.value.dtype),
        shapes=(
            (*x.shape[:2], config.num_heads * config.head_size),
            memory.key.shape,
            memory.value.shape,
        ),
        version=1,
    )
    return Attended(context, KeyValue(key, value))
