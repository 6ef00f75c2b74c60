"""The tokens with which a language model of code fills in the middle of a text."""

from tokenizers import Tokenizer

from model.bundle import FillInMiddle

# Each family of names, as its makers write the prompt: before the text that precedes, before the
# text that follows, and before the answer.
_NAMES = (
    # Qwen 2.5 Coder, CodeGemma
    FillInMiddle(prefix="<|fim_prefix|>", suffix="<|fim_suffix|>", middle="<|fim_middle|>"),
    # StarCoder, Granite
    FillInMiddle(prefix="<fim_prefix>", suffix="<fim_suffix>", middle="<fim_middle>"),
    # SantaCoder
    FillInMiddle(prefix="<fim-prefix>", suffix="<fim-suffix>", middle="<fim-middle>"),
    # DeepSeek-Coder, where the answer takes the place of the hole
    FillInMiddle(prefix="<｜fim▁begin｜>", suffix="<｜fim▁hole｜>", middle="<｜fim▁end｜>"),
)


def fill_in_middle(tokenizer_json: str) -> FillInMiddle | None:
    """The names that are added tokens of the tokenizer, so that texts have them as one token each;
    ``None`` without such tokens.
    """
    added = Tokenizer.from_str(tokenizer_json).get_added_tokens_decoder().values()
    known = {token.content for token in added}
    return next(
        (names for names in _NAMES if {names.prefix, names.suffix, names.middle} <= known), None
    )
