"""Ollama's ``options``, ``format`` and ``think``, and their conversion to service options."""

from typing import Any

import msgspec

from server.errors import InvalidArgumentError
from server.frontends.http.fields import flat_body, options_of
from server.frontends.http.openai.options import check_neutral, json_schema
from server.printable import quoted
from server.service.generation_options import Grammar
from server.service.generation_request import GenerateRequest, ReasoningSupport
from server.service.service import Service

# Ollama's defaults; the service's own are greedy, without limits of tokens to choose from.
TEMPERATURE, TOP_K, TOP_P = 0.8, 40, 0.9
# The effort of ``think`` without a level.
_EFFORT = "medium"
_RANDOM_SEED = -1


class OptionFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options with names or values of Ollama's own; those of the service are added by name.

    The second group has no effect: the operator decides how models run, and a context is always
    as long as the model's. The last one is rejected unless the values have no effect.
    """

    num_predict: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    num_ctx: int | None = None
    num_keep: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    num_gqa: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    draft_num_predict: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None

    mirostat: int | None = None
    tfs_z: float | None = None
    penalize_newline: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    embedding_only: bool | None = None


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "tfs_z": (1.0,),
    "penalize_newline": (True,),
    "logits_all": (False,),
    "vocab_only": (False,),
    "embedding_only": (False,),
}
# Options of the service that have another name here.
_NAMES = {
    "max_new_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "stop_strings": "options.stop",
    "grammar": "format",
    "grammar.json_schema": "format",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "reasoning_effort": "think",
}
# Those that exist only in other protocols.
_WITHOUT = (
    *("num_hypotheses", "bad_word_ids", "token_ids", "prompt_logprobs", "echo"),
    *("tool_choice", "tool_name", "parallel_tool_calls", "template_variables"),
    *("separate_reasoning", "continue_final_message", "drop_oldest_messages"),
)

Options: Any = flat_body("Options", OptionFields, GenerateRequest, (*_NAMES, *_WITHOUT))
"""The options of a request, and every option of the service by its own name."""

NAMES = {name: f"options.{name}" for name in Options.__struct_fields__} | _NAMES
"""Ollama's names of the service's fields, for errors."""


def check_options(options: Any) -> None:
    """Raises ``InvalidArgumentError`` for options that request an unsupported feature."""
    try:
        check_neutral(options, **_NEUTRAL)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"options.{error.field}", error.description) from None


def generate_request(body: Any, **given: Any) -> GenerateRequest:
    """Builds the service's request.

    Args:
        body: has ``model``, ``options``, ``format``, ``logprobs`` and ``top_logprobs``.
        given: other fields of the request.

    Raises:
        InvalidArgumentError: a field is invalid; the error names it.
    """
    options = body.options or Options()
    check_options(options)
    is_search = options.beam_size is not None and options.beam_size > 1
    temperature = 0.0 if is_search else TEMPERATURE
    top_k, top_p = _or(options.top_k, TOP_K), _or(options.top_p, TOP_P)
    is_top_one = top_p <= 0  # the most likely token alone
    values = {
        "model": body.model,
        "temperature": _or(options.temperature, temperature),
        "top_k": 1 if is_top_one else max(top_k, 0),
        "top_p": 1.0 if is_top_one else top_p,
        "seed": None if options.seed == _RANDOM_SEED else options.seed,
        "max_new_tokens": _num_predict(options.num_predict),
        "stop_strings": _stop_strings(options.stop),
        "grammar": grammar_of(body.format),
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs if body.logprobs else None,
        "chat": None,
        "version": None,
        **_penalties(options),
    }
    return options_of(options, GenerateRequest, {**values, **given})


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _num_predict(given: int | None) -> int | None:
    """The limit of new tokens; ``None`` if it is negative: the text ends by itself or is full."""
    return None if given is None or given < 0 else given


def _stop_strings(given: str | list[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _penalties(options: Any) -> dict[str, float | None]:
    """The penalties, which apply to the whole text. ``repeat_last_n`` 0 turns them off."""
    penalties = {
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    window = options.repeat_last_n
    if window == 0:
        return {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    has_penalty = options.repeat_penalty not in (None, 1) or bool(
        options.presence_penalty or options.frequency_penalty
    )
    if window is not None and window > 0 and has_penalty:
        raise InvalidArgumentError(
            "options.repeat_last_n",
            "is not supported: penalties apply to the whole text (-1), or are off (0)",
        )
    return penalties


def grammar_of(given: str | dict[str, Any] | None) -> Grammar | None:
    """The grammar of ``format``: "json", or a JSON schema."""
    if given is None or given == "":
        return None
    if given == "json":
        return json_schema({"type": "object"})
    if isinstance(given, str):
        raise InvalidArgumentError("format", f"{quoted(given)} is neither json nor a JSON schema")
    return json_schema(given)


def effort_of(think: bool | str | None, model: str, service: Service) -> str:
    """The service's ``reasoning_effort``; empty for the default of the model's template.

    Raises:
        InvalidArgumentError: ``think`` asks a model to think that does not.
    """
    if think is None:
        return ""
    if think is False:
        return "none"
    template = service.bundle(model).chat_template
    support = ReasoningSupport.NEVER if template is None else template.reasoning
    if support is ReasoningSupport.NEVER:
        raise InvalidArgumentError("think", f"{quoted(model)} does not think before it answers")
    if think is True:
        return _EFFORT if support is ReasoningSupport.OPTIONAL else ""
    return think
