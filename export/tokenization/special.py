"""Special tokens and the template around a text, named as by Hugging Face."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tokenizers import AddedToken, Tokenizer, processors

from export.errors import SourceError
from export.readers.fields import Fields
from export.tokenization.languages import languages_of

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True, kw_only=True)
class Template:
    """Roles of the tokens before and after a text (or a pair), and between the texts of a pair.

    ``second_type``: the token type of a pair's second text.
    """

    prefix: tuple[str, ...] = ()
    suffix: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    second_type: int = 1


_BERT = Template(prefix=("cls",), suffix=("sep",))
_ROBERTA = Template(prefix=("bos",), suffix=("eos",), between=("eos",), second_type=0)
_MPNET = Template(prefix=("cls",), suffix=("sep",), between=("sep",), second_type=0)
_ESM = Template(prefix=("cls",), suffix=("eos",), second_type=0)
_T5 = Template(suffix=("eos",))
_BOS = Template(prefix=("bos",))
_LANGUAGE_FIRST = Template(prefix=("language",), suffix=("eos",))
_LANGUAGE_LAST = Template(suffix=("eos", "language"))
# By ``tokenizer_class`` of tokenizer_config.json, without "Tokenizer" and "Fast".
TEMPLATES = {
    "Bert": _BERT,
    "DistilBert": _BERT,
    "ConvBert": _BERT,
    "Electra": _BERT,
    "MobileBert": _BERT,
    "RoFormer": _BERT,
    "SqueezeBert": _BERT,
    "Albert": _BERT,
    "DebertaV2": _BERT,
    "MPNet": _MPNET,
    "Roberta": _ROBERTA,
    "XLMRoberta": _ROBERTA,
    "Camembert": _ROBERTA,
    "Bart": _ROBERTA,
    "Blenderbot": _T5,
    "BlenderbotSmall": Template(),
    "Esm": _ESM,
    "T5": _T5,
    "Marian": _T5,
    "Pegasus": _T5,
    "Llama": _BOS,
    "Mistral": _BOS,
    "Gemma": _BOS,
    "GPT2": Template(),
    "CodeGen": Template(),
    "MBart": _LANGUAGE_LAST,
    "MBart50": _LANGUAGE_FIRST,
    "M2M100": _LANGUAGE_FIRST,
    "Nllb": _LANGUAGE_FIRST,
}
# The default tokens of each class.
DEFAULTS = {
    "Bert": {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
    "Roberta": {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"},
    "GPT2": {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"},
    "T5": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "Llama": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
    "Gemma": {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>"},
    "Albert": {"unk": "<unk>", "sep": "[SEP]", "pad": "<pad>", "cls": "[CLS]", "mask": "[MASK]"},
}
DEFAULTS["MPNet"] = {**DEFAULTS["Roberta"], "unk": "[UNK]", "sep": "</s>", "cls": "<s>"}
DEFAULTS["CodeGen"] = DEFAULTS["GPT2"]
DEFAULTS["Esm"] = {role: f"<{role}>" for role in ("unk", "cls", "pad", "mask", "eos")}
_LIKE_BERT = (
    "ConvBert",
    "DebertaV2",
    "DistilBert",
    "Electra",
    "MobileBert",
    "RoFormer",
    "SqueezeBert",
)
DEFAULTS |= dict.fromkeys(_LIKE_BERT, DEFAULTS["Bert"])
DEFAULTS["BlenderbotSmall"] = {
    **{"bos": "__start__", "eos": "__end__"},
    **{"unk": "__unk__", "pad": "__null__"},
}
DEFAULTS |= dict.fromkeys(("XLMRoberta", "Camembert", "Bart", "Blenderbot"), DEFAULTS["Roberta"])
DEFAULTS |= dict.fromkeys(("MBart", "MBart50", "M2M100", "Nllb"), DEFAULTS["Roberta"])
DEFAULTS["Marian"] = DEFAULTS["T5"]
DEFAULTS["Pegasus"] = {**DEFAULTS["T5"], "mask": "<mask_2>"}
DEFAULTS["Mistral"] = DEFAULTS["Llama"]
# Classes that split texts by code, which their files do not describe.
OWN_SPLITTERS = ("BertJapanese", "Bertweet", "Herbert", "Phobert")
# By ``model_type`` of config.json, for folders without a tokenizer class.
CLASSES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "convbert": "ConvBert",
    "electra": "Electra",
    "mobilebert": "MobileBert",
    "roformer": "RoFormer",
    "squeezebert": "SqueezeBert",
    "albert": "Albert",
    "deberta-v2": "DebertaV2",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "data2vec-text": "Roberta",
    "dpr": "Bert",
    "ernie": "Bert",
    "esm": "Esm",
    "gte": "XLMRoberta",
    "jina_embeddings_v3": "XLMRoberta",
    "longformer": "Roberta",
    "megatron-bert": "Bert",
    "nomic_bert": "Bert",
    "roberta-prelayernorm": "Roberta",
    "xlm-roberta-xl": "XLMRoberta",
    "bart": "Bart",
    "led": "Bart",
    "blenderbot": "Blenderbot",
    "blenderbot-small": "BlenderbotSmall",
    "t5": "T5",
    "mt5": "T5",
    "switch_transformers": "T5",
    "marian": "Marian",
    "pegasus": "Pegasus",
    "mbart": "MBart",
    "m2m_100": "M2M100",
    "nllb-moe": "Nllb",
    "llama": "Llama",
    "mistral": "Llama",
    "gemma": "Gemma",
    "gemma2": "Gemma",
    "gpt2": "GPT2",
    "gpt_bigcode": "GPT2",
    "gpt_neo": "GPT2",
    "gptj": "GPT2",
    "opt": "GPT2",
    "codegen": "CodeGen",
}


@dataclass(frozen=True, kw_only=True)
class TokenizerSpecialTokens:
    """A tokenizer's special tokens.

    Attributes:
        tokens: by role.
        added: by id.
        details: for some tokens, how they treat adjacent spaces.
        template: the tokens around a text.
    """

    tokens: dict[str, str]
    added: dict[int, AddedToken]
    details: dict[str, AddedToken] = field(default_factory=dict)
    template: Template = field(default_factory=Template)

    def add_to(self, tokenizer: Tokenizer, extra: Sequence[str] = ()) -> None:
        """Adds the special tokens and the template to ``tokenizer``.

        Args:
            extra: further special tokens.

        Raises:
            SourceError: a token of the template is not in the vocabulary.
        """
        names = dict.fromkeys([*self.tokens.values(), *extra])
        in_vocabulary = [name for name in names if tokenizer.token_to_id(name) is not None]
        details = {token.content: token for token in self.added.values()}
        tokenizer.add_special_tokens(
            [
                details.pop(name, None) or self.details.get(name) or plain_token(name)
                for name in in_vocabulary
            ]
        )
        for index, token in sorted(self.added.items()):
            if token.content in details:
                kind = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
                kind([token])
                if tokenizer.token_to_id(token.content) != index:
                    raise SourceError(
                        f"the added token {token.content!r} should have the id {index}, after "
                        f"{tokenizer.get_vocab_size()} tokens"
                    )
        self._add_template(tokenizer)

    def _add_template(self, tokenizer: Tokenizer) -> None:
        template = self.template
        roles = {*template.prefix, *template.suffix, *template.between}
        missing = sorted(
            role for role in roles if tokenizer.token_to_id(self.tokens.get(role, "")) is None
        )
        if missing:
            raise SourceError(f"the vocabulary has no token for: {', '.join(missing)}")
        if not roles:
            return

        def named(part: tuple[str, ...]) -> list[str]:
            return [self.tokens[role] for role in part]

        ids = [(token, tokenizer.token_to_id(token)) for token in named(tuple(sorted(roles)))]
        single = [*named(template.prefix), "$A", *named(template.suffix)]
        kind = template.second_type
        suffix = [f"{token}:{kind}" for token in named(template.suffix)]
        second = [*named(template.between), f"$B:{kind}", *suffix]
        ends = processors.TemplateProcessing(
            single=single, pair=[*single, *second], special_tokens=ids
        )
        before = tokenizer.post_processor
        tokenizer.post_processor = processors.Sequence([before, ends]) if before else ends


def class_name(tokenizer_config: Fields, config: Fields) -> str:
    """A folder's tokenizer class, in :data:`TEMPLATES` if it is supported; empty if unknown."""
    name = tokenizer_config.text("tokenizer_class", config.text("tokenizer_class", ""))
    name = name.removesuffix("Fast").removesuffix("Tokenizer")
    return (
        name
        if name in TEMPLATES or name in OWN_SPLITTERS
        else CLASSES.get(config.text("model_type", ""), name)
    )


def special_tokens(
    tokenizer_config: Fields, token_map: Fields, added: Fields, name: str
) -> TokenizerSpecialTokens:
    """Special tokens from tokenizer_config.json, special_tokens_map.json and added_tokens.json.

    Args:
        name: from :func:`class_name`.
    """
    tokens = dict(DEFAULTS.get(name, {}))
    details = {}
    if "mask" in tokens and "bos" in tokens:  # a mask replaces a word and the preceding space
        details[tokens["mask"]] = AddedToken(tokens["mask"], lstrip=True, normalized=False)
    for fields in (token_map, tokenizer_config):
        for role in ROLES:
            value = fields.get(f"{role}_token")
            if isinstance(value, dict):
                token = token_of(Fields(value, fields.origin))
                tokens[role], details[token.content] = token.content, token
            elif isinstance(value, str):
                tokens[role] = value
            elif name == "Esm" and f"{role}_token" in fields:  # DNA encoders have no end token
                tokens.pop(role, None)
    template = TEMPLATES.get(name, Template())
    if name == "Esm" and "eos" not in tokens:
        template = replace(template, suffix=())
    languages = languages_of(name, tokenizer_config)
    if languages is not None:
        tokens["language"] = languages.source
        if name == "Nllb" and tokenizer_config.flag("legacy_behaviour", False):
            template = _LANGUAGE_LAST
    if name in DEFAULTS:
        template = replace(
            template,
            prefix=_switched(tokenizer_config, "bos", template.prefix),
            suffix=_switched(tokenizer_config, "eos", template.suffix),
        )
    return TokenizerSpecialTokens(
        tokens=tokens,
        added=added_tokens(tokenizer_config, added),
        details=details,
        template=template,
    )


def plain_token(name: str) -> AddedToken:
    """A special token that its name alone describes."""
    return AddedToken(name, special=True, normalized=False)


def token_of(fields: Fields) -> AddedToken:
    """The token that ``fields`` describe. Raises ``SourceError`` if a field has another type."""
    flags = ("special", "lstrip", "rstrip", "single_word", "normalized")
    values = {flag: fields.flag(flag, False) for flag in flags}
    return AddedToken(fields.text("content"), **values)


def _switched(config: Fields, role: str, part: tuple[str, ...]) -> tuple[str, ...]:
    """Adds or removes ``role`` according to ``add_bos_token`` or ``add_eos_token``, if set."""
    value = config.get(f"add_{role}_token")
    if not isinstance(value, bool) or value == (role in part):
        return part
    return (role, *part) if value else tuple(other for other in part if other != role)


def added_tokens(tokenizer_config: Fields, added: Fields) -> dict[int, AddedToken]:
    """The tokens of ``added_tokens_decoder`` and of added_tokens.json, by id.

    Raises:
        SourceError: an id or a field has another type.
    """
    decoder = tokenizer_config.fields("added_tokens_decoder")
    found = {added.integer(token): plain_token(token) for token in added}
    for index in decoder:
        if not index.isdecimal():
            raise SourceError(f"{decoder.origin}: {index!r} is not an id")
        found[int(index)] = token_of(decoder.fields(index))
    return found
