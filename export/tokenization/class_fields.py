"""The changes that tokenizer classes of ``transformers`` make to a tokenizer.json.

They rebuild some parts from the fields of tokenizer_config.json or the class's defaults, whatever
tokenizer.json says; ``PreTrainedTokenizerFast`` changes nothing.
"""

from typing import Any

from export.errors import UnsupportedError
from export.readers.fields import Fields

_WORD_PIECE = (
    *("Bert", "DistilBert", "DPRContextEncoder", "DPRQuestionEncoder", "Electra", "MobileBert"),
    *("MPNet", "SqueezeBert"),
)
_BYTE_LEVEL = ("Bart", "Blenderbot", "GPT2", "GPTNeoX", "Longformer", "Qwen2", "Roberta")
_LOWERCASE = ("Albert", "DebertaV2", "XLNet")
_META_SPACE = ("Albert", "Camembert", "Llama", "XLMRoberta")
# Classes of folders that name none.
_BY_MODEL_TYPE = {
    "albert": "Albert",
    "bart": "Roberta",
    "bert": "Bert",
    "blenderbot": "Blenderbot",
    "camembert": "Camembert",
    "convbert": "Bert",
    "data2vec-text": "Roberta",
    "deberta-v2": "DebertaV2",
    "distilbert": "Bert",
    "electra": "Bert",
    "ernie": "Bert",
    "gpt2": "GPT2",
    "gpt_neox": "GPTNeoX",
    "gte": "XLMRoberta",
    "jina_embeddings_v3": "XLMRoberta",
    "jais2": "GPT2",
    "longformer": "Roberta",
    "megatron-bert": "Bert",
    "metaclip_2": "XLMRoberta",
    "metaclip_2_text_model": "XLMRoberta",
    "mobilebert": "Bert",
    "mpnet": "MPNet",
    "nomic_bert": "Bert",
    "opt": "GPT2",
    "qwen2": "Qwen2",
    "qwen2_moe": "Qwen2",
    "qwen3": "Qwen2",
    "qwen3_moe": "Qwen2",
    "roberta": "Roberta",
    "roberta-prelayernorm": "Roberta",
    "squeezebert": "Bert",
    "xlm-roberta": "XLMRoberta",
    "xlm-roberta-xl": "XLMRoberta",
    "xlnet": "XLNet",
}
# Model types for which transformers uses tokenizer.json unchanged, whatever the class.
_UNCHANGED = (
    *("ernie4_5", "ernie4_5_moe", "hyperclovax", "ministral3", "mistral", "mixtral", "modernbert"),
    "phi3",
)


def apply_class_fields(tokenizer: dict[str, Any], own: Fields, config: Fields) -> None:
    """Changes ``tokenizer``, the content of tokenizer.json, as the folder's class would.

    Args:
        own: tokenizer_config.json.
        config: config.json.

    Raises:
        SourceError: a field has another type.
        UnsupportedError: a field contradicts tokenizer.json, and its class is not supported here.
    """
    name = _class(own, config)
    normalizers = _parts(tokenizer.get("normalizer"), "normalizers")
    pre_tokenizers = _parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    byte_level = _of(pre_tokenizers, "ByteLevel")
    if name in _WORD_PIECE:
        for part in _of(normalizers, "BertNormalizer"):
            part["lowercase"] = own.flag("do_lower_case", True)
            part["handle_chinese_chars"] = own.flag("tokenize_chinese_chars", True)
            is_set = own.get("strip_accents") is not None
            part["strip_accents"] = own.flag("strip_accents") if is_set else None
    elif name in _BYTE_LEVEL:
        for part in byte_level:
            part["add_prefix_space"] = own.flag("add_prefix_space", name == "Blenderbot")
    if name in _LOWERCASE:
        _check(own, "do_lower_case", bool(_of(normalizers, "Lowercase")))
    if name in _META_SPACE and not byte_level:
        spaces = _of(normalizers, "Prepend") + _of(pre_tokenizers, "Metaspace")
        _check(own, "add_prefix_space", any(_prepends(part) for part in spaces))


def _class(own: Fields, config: Fields) -> str:
    """The folder's tokenizer class, without "Tokenizer" and "Fast"."""
    model_type = config.text("model_type", "")
    if model_type in _UNCHANGED:
        return ""
    name = own.text("tokenizer_class", config.text("tokenizer_class", ""))
    if model_type == "qwen2" or not name:
        return _BY_MODEL_TYPE.get(model_type, "")
    return name.removesuffix("Fast").removesuffix("Tokenizer")


def _parts(value: object, children: str) -> list[dict[str, Any]]:
    """The normalizer or pre-tokenizer ``value``, or those of its sequence."""
    parts: list[dict[str, Any]] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            parts.append(part)
            inner = part.get(children)
            waiting += inner if isinstance(inner, list) else []
    return parts


def _of(parts: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [part for part in parts if part.get("type") == kind]


def _prepends(part: dict[str, Any]) -> bool:
    """Whether a Prepend or Metaspace adds a space. Older files have no ``prepend_scheme``."""
    scheme = "always" if part.get("add_prefix_space", True) else "never"
    return bool(part.get("prepend_scheme", scheme) != "never")


def _check(own: Fields, name: str, actual: bool) -> None:
    if own.flag(name, actual) != actual:
        raise UnsupportedError(
            f"{own.origin}: {name} {not actual} contradicts tokenizer.json and is not supported; "
            f"supported: {actual}"
        )
