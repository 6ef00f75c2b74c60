"""vLLM's fields of generative calls that are accepted only with values that have no effect."""

from typing import Any

import msgspec

from server.frontends.http.body import NOTHING


class VllmFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields for what is not supported. Clients send vLLM's defaults, too."""

    use_beam_search: msgspec.Raw = NOTHING
    include_stop_str_in_output: msgspec.Raw = NOTHING
    skip_special_tokens: msgspec.Raw = NOTHING
    spaces_between_special_tokens: msgspec.Raw = NOTHING
    return_tokens_as_token_ids: msgspec.Raw = NOTHING
    return_token_ids: msgspec.Raw = NOTHING
    truncate_prompt_tokens: msgspec.Raw = NOTHING
    prompt_logprobs: msgspec.Raw = NOTHING
    allowed_token_ids: msgspec.Raw = NOTHING
    logits_processors: msgspec.Raw = NOTHING
    cache_salt: msgspec.Raw = NOTHING
    kv_transfer_params: msgspec.Raw = NOTHING
    vllm_xargs: msgspec.Raw = NOTHING
    truncation_side: msgspec.Raw = NOTHING
    logprob_token_ids: msgspec.Raw = NOTHING
    stream_interval: msgspec.Raw = NOTHING
    prompt_embeds: msgspec.Raw = NOTHING
    repetition_detection: msgspec.Raw = NOTHING
    thinking_token_budget: msgspec.Raw = NOTHING
    watermarking: msgspec.Raw = NOTHING
    ec_transfer_params: msgspec.Raw = NOTHING


VLLM_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "allowed_token_ids": (),
    "logits_processors": (),
    "cache_salt": (),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "truncation_side": ("left", "right"),
    "logprob_token_ids": (),
    "stream_interval": (1,),
    "prompt_embeds": (),
    "repetition_detection": (),
    "thinking_token_budget": (-1,),
    "watermarking": (False,),
    "ec_transfer_params": ({},),
}
"""The values without an effect, besides null, [] and "", for ``check_neutral``."""
