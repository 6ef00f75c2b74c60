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
}
"""The values without an effect, besides null, [] and "", for ``check_neutral``."""
