"""The tokenizer of models that read no texts: it has no tokens."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

NO_TOKENIZER = Tokenizer(WordLevel({}, unk_token="")).to_str()
