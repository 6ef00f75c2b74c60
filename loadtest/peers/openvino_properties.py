"""How OpenVINO runs on the processor at each precision."""

from typing import Any

from loadtest.peers.json_lines import Message

GROUP = 64
"""Activations that share a scale where weights in 8 or 4 bits meet activations in 8 bits."""


def properties(message: Message) -> dict[str, Any]:
    """Properties of ``compile_model``.

    Below fp32, the arithmetic of what is not quantized is OpenVINO's choice, such as bfloat16.
    """
    found: dict[str, Any] = {"INFERENCE_NUM_THREADS": message["threads"]}
    if message["precision"] == "fp32":
        return found | {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
    return found | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP}
