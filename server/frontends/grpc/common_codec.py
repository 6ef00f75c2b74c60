"""Protobuf messages that the responses of several calls contain."""

from protos.triune.v1 import common_pb2
from server.service.usage import Timing, Usage


def usage(counted: Usage) -> common_pb2.Usage:
    """Encodes token counts."""
    return common_pb2.Usage(
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        reused_tokens=counted.reused_tokens,
        reasoning_tokens=counted.reasoning_tokens,
    )


def timing(measured: Timing) -> common_pb2.Timing:
    """Encodes the durations of a call, in seconds."""
    return common_pb2.Timing(
        queue_seconds=measured.queue_seconds,
        tokenize_seconds=measured.tokenize_seconds,
        prefill_seconds=measured.prefill_seconds,
        decode_seconds=measured.decode_seconds,
        total_seconds=measured.total_seconds,
    )
