"""English spelling to sound: the GRU encoder-decoder of ``g2p-en`` (Park and Kim), as ``.npz``.

One layer on each side and no attention, as in Sutskever et al. 2014: the encoder's last state is
the decoder's first. The alphabets are the package's: letters, and the phonemes of the CMU
Pronouncing Dictionary.
"""

import re
import zipfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError
from model.bundle import SpecialTokens, Task
from model.config import EmbeddingConfig, HeadConfig, HeadKind, Kind, ModelConfig
from model.position_config import PositionConfig, PositionKind
from model.recurrent_config import BridgeKind, CellKind, RecurrentConfig

ARCHITECTURE = "GRU encoder-decoder"
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
PHONEMES = tuple(
    re.findall(
        r"\S+",
        "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH "
        "EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG "
        "OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH",
    )
)
# The source's tokens, in the order of the checkpoint's rows; the target's begin with four more.
SOURCE_TOKENS = ("<pad>", "<unk>", "</s>", *LETTERS)
PAD, UNKNOWN, EOS, START = 0, 1, 2, len(SOURCE_TOKENS)
TARGET_START, TARGET_EOS, FIRST_PHONEME = 2, 3, 4
TOKENS = (*SOURCE_TOKENS, "<s>", *PHONEMES)
# The package's own limit is 20 phonemes; this one limits the server's cache.
MAX_POSITIONS = 64
ARRAYS = frozenset(
    ["fc_w", "fc_b"]
    + [f"{side}_{part}" for side in ("enc", "dec") for part in ("emb", "w_ih", "w_hh", "b_ih")]
    + ["enc_b_hh", "dec_b_hh"]
)
SAMPLES = ("attention", "translate", "recurrent", "network", "is", "all", "you", "need")


def is_g2p(path: Path) -> bool:
    """Whether ``path`` is an archive of exactly this model's arrays."""
    if not (path.is_file() and path.suffix == ".npz" and zipfile.is_zipfile(path)):
        return False
    with zipfile.ZipFile(path) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()} == ARRAYS


def import_g2p(path: Path) -> Checkpoint:
    """The model in the archive ``path``, ready for a bundle.

    Raises:
        SourceError: an array cannot be read, or has the wrong type or shape.
        WeightsError: the arrays do not fit together.
    """
    arrays = _read(path)
    size = arrays["enc_w_hh"].shape[-1]
    config = ModelConfig(
        kind=Kind.ENCODER_DECODER,
        vocabulary_size=len(TOKENS),
        hidden_size=size,
        position=PositionConfig(kind=PositionKind.NONE, max_positions=MAX_POSITIONS),
        embedding=EmbeddingConfig(size=arrays["enc_emb"].shape[1]),
        recurrent=RecurrentConfig(
            cell=CellKind.GRU,
            encoder_size=size,
            decoder_size=size,
            bridge=BridgeKind.COPY,
            readout=False,
        ),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True),
    )
    weights = _weights(arrays)
    check_weights(config, weights)
    return Checkpoint(
        config=config,
        weights=weights,
        tokenizer_json=_tokenizer().to_str(),
        architecture=ARCHITECTURE,
        tasks=(Task.GENERATE,),
        special_tokens=SpecialTokens(
            eos=(EOS,),
            pad=PAD,
            unk=UNKNOWN,
            decoder_start=START,
            suppressed=(*(id_ for id_ in range(START) if id_ != EOS), START),
        ),
        license="unknown",
        name="g2p",
        source_language="en",
        max_length_factor=3.0,
        sample_inputs=SAMPLES,
    )


def _read(path: Path) -> dict[str, Tensor]:
    """The archive's arrays; pickled ones are refused."""
    arrays = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name in sorted(ARRAYS):
                array = archive[name]
                if array.dtype != np.float32 or array.ndim not in (1, 2) or not array.size:
                    raise SourceError(f"{path}: {name}: not a vector or matrix of fp32")
                arrays[name] = torch.from_numpy(array)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise SourceError(f"{path}: {error}") from error
    num_rows = {"enc_emb": len(SOURCE_TOKENS), "dec_emb": FIRST_PHONEME + len(PHONEMES)}
    for name, rows in (*num_rows.items(), ("fc_w", num_rows["dec_emb"])):
        if arrays[name].shape[0] != rows or arrays[name].ndim != 2:
            raise SourceError(f"{path}: {name}: {list(arrays[name].shape)}, not {rows} rows")
    return arrays


def _weights(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights for both alphabets in one vocabulary; logits of letters are 0, and suppressed."""
    embedding = arrays["dec_emb"]
    target = (embedding[TARGET_START : TARGET_START + 1], embedding[FIRST_PHONEME:])
    output = torch.zeros(len(TOKENS), arrays["fc_w"].shape[1])
    bias = torch.zeros(len(TOKENS))
    for ours, theirs in (
        ([EOS, START], [TARGET_EOS, TARGET_START]),
        (slice(START + 1, None), slice(FIRST_PHONEME, None)),
    ):
        output[ours], bias[ours] = arrays["fc_w"][theirs], arrays["fc_b"][theirs]
    weights = {
        "embedding.tokens.weight": torch.cat([arrays["enc_emb"], *target]),
        "head.output.weight": output.T.contiguous(),
        "head.output.bias": bias,
    }
    for side, layer in (("enc", "encoder.layers.0.0"), ("dec", "decoder.layers.0")):
        for suffix, part in (("ih", "input"), ("hh", "recurrent")):
            weights[f"{layer}.{part}.weight"] = arrays[f"{side}_w_{suffix}"].T.contiguous()
            weights[f"{layer}.{part}.bias"] = arrays[f"{side}_b_{suffix}"]
    return weights


def _tokenizer() -> Tokenizer:
    """Tokenizes letter by letter, without accents; joins phonemes with spaces."""
    vocabulary = {token: id_ for id_, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(["<pad>", "<unk>", "</s>", "<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", EOS)]
    )
    return tokenizer
