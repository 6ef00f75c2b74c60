"""Formats token counts as OpenAI does."""

from typing import Any

from server.service.usage import Usage


def completion_usage(usage: Usage) -> dict[str, Any]:
    """The usage of chat and text completions."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.reused_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def prompt_usage(usage: Usage) -> dict[str, Any]:
    """The usage of embeddings and other calls without output tokens."""
    return {"prompt_tokens": usage.input_tokens, "total_tokens": usage.input_tokens}


def response_usage(usage: Usage) -> dict[str, Any]:
    """The usage of responses and decisions."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.reused_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
