"""The vocabulary of a model with connectionist temporal classification, as *tokenizers* JSON."""

from dataclasses import dataclass

from tokenizers import Tokenizer, decoders, models

from export.errors import SourceError
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bundle import CtcTokens

VOCABULARY_FILE, ADDED_FILE = "vocab.json", "added_tokens.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
# In English text of ``transformers``, with clean_up_tokenization_spaces.
CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


@dataclass(frozen=True)
class CtcVocabulary:
    """``tokenizer_json`` decodes tokens without blanks and repetitions."""

    tokenizer_json: str
    tokens: CtcTokens


def read_ctc_vocabulary(folder: HuggingFaceFolder, size: int) -> CtcVocabulary:
    """The vocabulary of ``Wav2Vec2CTCTokenizer``, whose ids are below ``size``.

    Later ids, such as those of the start and the end of a text, are left out: the model has no
    outputs for them.

    Raises:
        SourceError: a file is missing or damaged, or the vocabulary has no blank.
        UnsupportedError: the tokenizer is of another class.
    """
    value = folder.read_json(TOKENIZER_CONFIG_FILE)
    config = Fields(value if isinstance(value, dict) else {}, TOKENIZER_CONFIG_FILE)
    check_supported(
        config,
        tokenizer_class=("Wav2Vec2CTCTokenizer", "Wav2Vec2Tokenizer"),
        target_lang=(None,),
        replace_word_delimiter_char=(" ",),
    )
    special = folder.special_tokens
    ids = _ids(folder, size)
    blank = ids.get(special.get("pad_token") or "<pad>")
    if blank is None:
        raise SourceError(f"{VOCABULARY_FILE}: the blank, {special.get('pad_token')!r}, is missing")
    delimiter = config.text("word_delimiter_token", "|")
    names = {name.lower() if config.flag("do_lower_case", False) else name for name in ids}
    if len(names) < len(ids):
        raise SourceError(f"{VOCABULARY_FILE}: with do_lower_case, several tokens are the same")
    if config.flag("do_lower_case", False):
        ids = {name.lower(): id_ for name, id_ in ids.items()}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=special.get("unk_token") or "<unk>"))
    cleaned = CLEAN_UP if config.flag("clean_up_tokenization_spaces", False) else ()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(delimiter, " "),
            decoders.Fuse(),
            *(decoders.Replace(*pair) for pair in cleaned),
        ]
    )
    tokens = CtcTokens(blank=blank, word_delimiter=ids.get(delimiter))
    return CtcVocabulary(tokenizer.to_str(), tokens)


def _ids(folder: HuggingFaceFolder, size: int) -> dict[str, int]:
    """Ids below ``size`` by token; where two tokens have the same id, that of the vocabulary."""
    by_id: dict[int, str] = {}
    for name in (ADDED_FILE, VOCABULARY_FILE):
        value = folder.read_json(name)
        if value is None and name == ADDED_FILE:
            continue
        if not isinstance(value, dict):
            raise SourceError(f"{folder.path}: {name} is missing or is not a JSON object")
        if any(isinstance(ids, dict) for ids in value.values()):
            raise SourceError(f"{name}: vocabularies of several languages are not supported")
        fields = Fields(value, name)
        by_id |= {fields.integer(token): token for token in fields}
    return {token: id_ for id_, token in sorted(by_id.items()) if id_ < size}
