"""The tokens of a model's texts, as serving reads and writes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jinja2 import Template, TemplateError
from tokenizers import Tokenizer

from export.checkpoint import Checkpoint
from model.bundle import SpecialTokens
from model.chat_template import compile_template, named_tokens
from model.conversation import Part, conversation_parts
from model.examples import ChatTurn
from model.languages import first_target_tokens, needs_language, with_language_token
from train.errors import RecipeError
from train.recipe import Recipe


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and how the model uses its special tokens.

    Attributes:
        languages: the tokens of a multilingual model's languages.
        source_language, target_language: the tokens of the recipe's; None for the model's default.
    """

    tokenizer: Tokenizer
    tokens: SpecialTokens
    template: Template | None = None
    languages: dict[str, int] = field(default_factory=dict)
    source_language: int | None = None
    target_language: int | None = None

    @cached_property
    def special(self) -> frozenset[int]:
        """The special tokens of the tokenizer."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(id_ for id_, token in added.items() if token.special)

    @cached_property
    def ordinary(self) -> Sequence[int]:
        """All other tokens."""
        size = self.tokenizer.get_vocab_size()
        return [id_ for id_ in range(size) if id_ not in self.special]

    @property
    def mask(self) -> int:
        """The token in the place of masked ones. Raises ``ValueError`` if there is none."""
        if self.tokens.mask is None:
            raise ValueError("the tokenizer has no mask")
        return self.tokens.mask

    @property
    def end(self) -> list[int]:
        """The token that ends a text."""
        return list(self.tokens.eos[:1])

    @cached_property
    def target_start(self) -> tuple[int, ...]:
        """The tokens that every target begins with."""
        return first_target_tokens(self.tokens, self.languages, self.target_language)

    def prompt(self, text: str) -> list[int]:
        """The tokens that a decoder continues."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids or ([] if self.tokens.bos is None else [self.tokens.bos])

    def continuation(self, text: str) -> list[int]:
        """The tokens of a text without special tokens around it."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def source(self, text: str) -> list[int]:
        """The tokens that an encoder reads before a decoder writes."""
        ids: list[int] = self.tokenizer.encode(text).ids
        if self.source_language is None:
            return ids
        return list(with_language_token(ids, self.languages, self.source_language))

    def conversation(self, turns: Sequence[ChatTurn]) -> list[Part]:
        """The tokens of a conversation.

        Raises:
            ValueError: there is no chat template, or it rejects the conversation.
        """
        named = named_tokens(self.tokens, self.tokenizer.id_to_token)
        return conversation_parts(turns, self.template, named, self.continuation, self.tokens.eos)


def vocabulary_of(
    tokenizer: Tokenizer, tokens: SpecialTokens, recipe: Recipe, start: Checkpoint | None
) -> Vocabulary:
    """The vocabulary of a new model, or of one that begins with the weights of ``start``.

    Raises:
        RecipeError: a language is missing or unknown, or the chat template cannot be used.
    """
    if start is None:
        return Vocabulary(tokenizer, tokens)
    template = None
    if start.chat_template is not None:
        try:
            template = compile_template(start.chat_template)
        except TemplateError as error:
            raise RecipeError(f"start_from: the chat template does not compile: {error}") from error
    if recipe.target_language is None and needs_language(tokens, start.languages):
        raise RecipeError(
            f"target_language: start_from requires one of {', '.join(start.languages)}"
        )
    return Vocabulary(
        tokenizer,
        tokens,
        template,
        start.languages,
        _language("source_language", recipe.source_language, start),
        _language("target_language", recipe.target_language, start),
    )


def _language(field_name: str, language: str | None, start: Checkpoint) -> int | None:
    if language is None or not start.languages:
        return None
    if language not in start.languages:
        raise RecipeError(
            f"{field_name}: {language} is not a language of start_from: "
            f"{', '.join(start.languages)}"
        )
    return start.languages[language]
