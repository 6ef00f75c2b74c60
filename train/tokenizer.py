"""Trains a tokenizer on the texts of a data set."""

import re
from collections.abc import Iterable

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from model.bundle import SpecialTokens
from model.config import Kind
from train.errors import DataError
from train.recipe import TokenizerKind, TokenizerRecipe

PAD, BOS, EOS, UNKNOWN, MASK = range(5)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
# Kinds whose vocabulary is every symbol of the data.
READ_ALL = (TokenizerKind.CHARACTERS, TokenizerKind.PHONEMES)
SYMBOL = r"[A-Z]+|\S"


def train_tokenizer(recipe: TokenizerRecipe, kind: Kind, texts: Iterable[str]) -> Tokenizer:
    """Trains a tokenizer on ``texts``, with the special tokens that a model of ``kind`` needs.

    An encoder's texts are ``<s> A </s>``, pairs ``<s> A </s> B </s>`` with B in segment 1; a
    source or target ends with ``</s>``; a prompt starts with ``<s>``.

    Raises:
        DataError: all texts are empty.
    """
    lowercase = normalizers.Lowercase()
    if recipe.lowercase:  # before training, so that the vocabulary is that of the model's inputs
        texts = map(lowercase.normalize_str, texts)
    if recipe.kind not in READ_ALL:
        everything = [text for text in texts if text]
        if not everything:
            raise DataError("data: no train example has a text")
        texts = everything[:: -(-len(everything) // recipe.max_texts)]
    tokenizer = BUILDERS[recipe.kind](recipe, texts)
    if recipe.lowercase:
        before = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([*([before] if before else []), lowercase])
    ids = [("<s>", BOS), ("</s>", EOS)]
    if kind == Kind.ENCODER:
        template = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ids
        )
    else:
        single = "<s> $A" if kind == Kind.DECODER else "$A </s>"
        template = processors.TemplateProcessing(single=single, special_tokens=ids)
    tokenizer.post_processor = template
    return tokenizer


def special_tokens(kind: Kind) -> SpecialTokens:
    """The ids of the special tokens, for the bundle."""
    if kind == Kind.ENCODER:
        return SpecialTokens(eos=(EOS,), pad=PAD, bos=BOS, unk=UNKNOWN, mask=MASK)
    return SpecialTokens(
        eos=(EOS,),
        pad=PAD,
        bos=BOS,
        unk=UNKNOWN,
        decoder_start=BOS if kind == Kind.ENCODER_DECODER else None,
        suppressed=(PAD, BOS, UNKNOWN, MASK),
    )


def _characters(_recipe: TokenizerRecipe, texts: Iterable[str]) -> Tokenizer:
    characters = sorted({character for text in texts for character in text})
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _phonemes(_recipe: TokenizerRecipe, texts: Iterable[str]) -> Tokenizer:
    """Single letters, and words of capitals whole; decoding puts spaces between the tokens."""
    symbols = sorted({symbol for text in texts for symbol in re.findall(SYMBOL, text)})
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *symbols))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(SYMBOL), "isolated")]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _bpe(recipe: TokenizerRecipe, texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max(recipe.vocabulary_size, len(SPECIAL) + 256),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _unigram(recipe: TokenizerRecipe, texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=recipe.vocabulary_size,
        special_tokens=list(SPECIAL),
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _wordpiece(recipe: TokenizerRecipe, texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=recipe.lowercase, strip_accents=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=recipe.vocabulary_size, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer's numbering of tokens differs from run to run.
    learned = sorted(set(tokenizer.get_vocab()) - set(SPECIAL))
    vocabulary = {token: id_ for id_, token in enumerate((*SPECIAL, *learned))}
    tokenizer.model = models.WordPiece(vocabulary, unk_token="<unk>")
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


BUILDERS = {
    TokenizerKind.CHARACTERS: _characters,
    TokenizerKind.PHONEMES: _phonemes,
    TokenizerKind.BPE: _bpe,
    TokenizerKind.UNIGRAM: _unigram,
    TokenizerKind.WORDPIECE: _wordpiece,
}
