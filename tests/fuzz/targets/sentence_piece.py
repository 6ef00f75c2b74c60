"""SentencePiece models, through both converters."""

from collections.abc import Iterator

from tokenizers import Tokenizer

from export.errors import ExportError
from export.tokenization.sentence_piece import read_sentence_piece
from export.tokenization.sentence_piece_ids import fairseq_order, own_order, to_tokenizer
from export.tokenization.special import TokenizerSpecialTokens
from tests.export.importers.marian_files import train_vocabulary
from tests.fuzz.files import content_of, rewrite, scratch

SIZE = 4096
SPECIAL = TokenizerSpecialTokens(tokens={"unk": "<unk>"}, added={})
TEXT = "The cat sat on 42 mats \u2581 é東"


def run(data: bytes) -> None:
    """First byte: selects the converter."""
    if not data:
        return
    path = rewrite(scratch("sentence-piece") / "source.spm", data[1:])
    try:
        model = read_sentence_piece(path)
        if data[0] & 1:
            text = model.to_json(append_eos=bool(data[0] & 2), extra_control_tokens=("<x>",))
            tokenizer = Tokenizer.from_str(text)
        else:
            order = fairseq_order if data[0] & 2 else own_order
            tokenizer = to_tokenizer(model, order(model), SPECIAL)
    except ExportError as error:
        str(error).encode()
        return
    ids = tokenizer.encode(TEXT).ids
    tokenizer.decode(ids)


def seeds() -> Iterator[bytes]:
    for number, options in enumerate(
        (
            {"normalization_rule_name": "identity"},
            {"model_type": "bpe", "normalization_rule_name": "identity"},
            {"byte_fallback": True, "vocab_size": 300, "normalization_rule_name": "identity"},
            {"user_defined_symbols": "<u>,<v>", "normalization_rule_name": "identity"},
        )
    ):
        name = f"{number}.spm"
        model = content_of(name, lambda path, options=options: train_vocabulary(path, **options))
        for form in range(4):
            yield bytes([form]) + model
