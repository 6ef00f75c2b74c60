"""The importers of all formats and families; a new one is an entry here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
from export.head_padding import pad_heads
from export.importers.adapted import adapted_folder
from export.importers.ast import import_ast
from export.importers.bart import import_bart
from export.importers.blenderbot import import_blenderbot, import_blenderbot_small
from export.importers.blip import import_blip
from export.importers.clip import (
    import_clip,
    import_clip_text,
    import_clip_vision,
    import_metaclip_2,
    import_metaclip_2_text,
    import_metaclip_2_vision,
)
from export.importers.decoders import DECODERS
from export.importers.dinov2 import import_dinov2, import_dinov2_with_registers
from export.importers.edit_tagger import TAGS_FILE, import_edit_tagger, is_edit_tagger
from export.importers.encoder_families import ENCODERS
from export.importers.g2p import import_g2p, is_g2p
from export.importers.gguf_architectures import GGUF
from export.importers.gliner import GLINER_FILE, import_gliner, is_gliner
from export.importers.idefics3 import import_idefics3, import_smolvlm
from export.importers.language_models import (
    import_gemma3_language_model,
    import_mistral3_language_model,
)
from export.importers.led import import_led
from export.importers.llava import import_llava
from export.importers.m2m100 import import_m2m100
from export.importers.marian import import_marian
from export.importers.mbart import import_mbart
from export.importers.native import import_native, is_native
from export.importers.netra import VOCABULARY_FILE, import_netra, is_netra
from export.importers.nllb_moe import import_nllb_moe
from export.importers.opus_mt import import_opus_mt
from export.importers.pegasus import import_pegasus
from export.importers.plbart import import_plbart
from export.importers.sentence_transformers import MODULES_FILE
from export.importers.siglip import import_siglip, import_siglip_vision
from export.importers.static import STATIC_EMBEDDING, import_static, is_static
from export.importers.switch_transformers import import_switch_transformers
from export.importers.t5 import import_t5
from export.importers.t5gemma import import_t5gemma
from export.importers.vision_encoder_decoder import import_vision_encoder_decoder
from export.importers.vit import import_deit, import_vit
from export.importers.wav2vec2 import import_data2vec_audio, import_hubert, import_wav2vec2
from export.importers.wavlm import import_wavlm
from export.importers.whisper import import_whisper
from export.importers.whisper_ctranslate2 import import_whisper_ctranslate2
from export.readers.ctranslate2 import (
    MODEL_FILE,
    CTranslate2Model,
    is_ctranslate2,
    read_ctranslate2,
)
from export.readers.gguf import is_gguf, read_gguf
from export.readers.hugging_face import (
    CONFIG_FILE,
    HuggingFaceFolder,
    folders_near,
    read_folder,
)
from export.readers.marian import is_marian
from export.readers.marian_folder import VOCABULARY_PATTERN, read_marian_folder
from export.readers.pickles import is_pickle, refusal
from export.supported import lookup
from export.tokenization.hugging_face import parse_tokenizer
from model.bundle import EmbeddingKind
from model.native_checkpoint import FORMAT

# By ``model_type`` of config.json.
HUGGING_FACE: dict[str, Callable[[HuggingFaceFolder], Checkpoint]] = {
    **ENCODERS,
    "bart": import_bart,
    "blenderbot": import_blenderbot,
    "blenderbot-small": import_blenderbot_small,
    "blip": import_blip,
    "clip": import_clip,
    "clip_text_model": import_clip_text,
    "clip_vision_model": import_clip_vision,
    "metaclip_2": import_metaclip_2,
    "metaclip_2_text_model": import_metaclip_2_text,
    "metaclip_2_vision_model": import_metaclip_2_vision,
    "deit": import_deit,
    "audio-spectrogram-transformer": import_ast,
    "data2vec-audio": import_data2vec_audio,
    "dinov2": import_dinov2,
    "dinov2_with_registers": import_dinov2_with_registers,
    "hubert": import_hubert,
    "siglip": import_siglip,
    "siglip_vision_model": import_siglip_vision,
    "smolvlm": import_smolvlm,
    "vision-encoder-decoder": import_vision_encoder_decoder,
    "vit": import_vit,
    "wav2vec2": import_wav2vec2,
    "wavlm": import_wavlm,
    "whisper": import_whisper,
    "gemma3": import_gemma3_language_model,
    "idefics3": import_idefics3,
    "led": import_led,
    "llava": import_llava,
    "m2m_100": import_m2m100,
    "marian": import_opus_mt,
    "mbart": import_mbart,
    "mistral3": import_mistral3_language_model,
    "mt5": import_t5,
    "nllb-moe": import_nllb_moe,
    "pegasus": import_pegasus,
    "plbart": import_plbart,
    "switch_transformers": import_switch_transformers,
    "t5": import_t5,
    "t5gemma": import_t5gemma,
    "umt5": import_t5,
    **DECODERS,
}
# Models of images and texts; one of their towers is exported.
WITH_TOWERS = ("clip", "metaclip_2", "siglip")
# By name of the specification.
CTRANSLATE2: dict[str, Callable[[CTranslate2Model], Checkpoint]] = {
    "WhisperSpec": import_whisper_ctranslate2,
}


def _import_hugging_face(
    path: Path, tower: str | None = None, vectors: EmbeddingKind | None = None
) -> Checkpoint:
    return _import_folder(replace(read_folder(path), tower=tower, vectors=vectors))


def _import_folder(folder: HuggingFaceFolder) -> Checkpoint:
    path, tower, vectors = folder.path, folder.tower, folder.vectors
    model_type = folder.config.text("model_type")
    if tower is not None and model_type not in WITH_TOWERS:
        raise UnsupportedError(
            f"--tower: {model_type!r} is one model; supported: {', '.join(WITH_TOWERS)}"
        )
    importer = lookup(HUGGING_FACE, model_type, f"{path}: {CONFIG_FILE}: model_type")
    checkpoint = importer(folder)
    found = None if checkpoint.embedding is None else checkpoint.embedding.kind
    if vectors is not None and found != vectors:
        raise UnsupportedError(f"--vectors {vectors}: {path} is not a masked language model")
    return checkpoint


def _import_gguf(path: Path) -> Checkpoint:
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files)
            raise SourceError(f"{path}: several GGUF files, name one: {names}")
        path = files[0]
    file = read_gguf(path)
    architecture = file.metadata.text("general.architecture")
    return lookup(GGUF, architecture, f"{path.name}: general.architecture")(file)


def _is_ctranslate2(path: Path) -> bool:
    file = path / MODEL_FILE if path.is_dir() else path
    return file.is_file() and is_ctranslate2(file)


def _import_ctranslate2(path: Path) -> Checkpoint:
    model = read_ctranslate2(path / MODEL_FILE if path.is_dir() else path)
    return lookup(CTRANSLATE2, model.spec, f"{path}: the specification")(model)


def _import_marian(path: Path) -> Checkpoint:
    return import_marian(read_marian_folder(path))


@dataclass(frozen=True, kw_only=True)
class CheckpointFormat:
    """A format of checkpoints on disk; ``matches`` looks at file names and first bytes."""

    description: str
    matches: Callable[[Path], bool]
    load: Callable[[Path], Checkpoint]


CHECKPOINT_FORMATS = (
    CheckpointFormat(
        description=f"a folder that python -m train wrote ({CONFIG_FILE} with format {FORMAT})",
        matches=is_native,
        load=import_native,
    ),
    CheckpointFormat(
        description=f"a CTranslate2 folder ({MODEL_FILE} of {', '.join(CTRANSLATE2)}, "
        f"{CONFIG_FILE}, tokenizer.json)",
        matches=_is_ctranslate2,
        load=_import_ctranslate2,
    ),
    CheckpointFormat(
        description="a folder of model2vec, or of sentence-transformers with static embeddings "
        f"({MODULES_FILE} with {STATIC_EMBEDDING})",
        matches=is_static,
        load=import_static,
    ),
    CheckpointFormat(
        description=f"a folder of the package gliner ({GLINER_FILE}, safetensors, tokenizer.json)",
        matches=is_gliner,
        load=import_gliner,
    ),
    CheckpointFormat(
        description=f"a Hugging Face folder ({CONFIG_FILE}, safetensors, tokenizer.json; "
        f"model_type {', '.join(HUGGING_FACE)})",
        matches=lambda path: (path / CONFIG_FILE).is_file(),
        load=_import_hugging_face,
    ),
    CheckpointFormat(
        description=f"a GGUF file (general.architecture {', '.join(GGUF)})",
        matches=lambda path: is_gguf(path) if path.is_file() else any(path.glob("*.gguf")),
        load=_import_gguf,
    ),
    CheckpointFormat(
        description=f"a Marian binary model (.bin) with its vocabulary ({VOCABULARY_PATTERN})",
        matches=lambda path: is_marian(path) if path.is_file() else any(path.glob("*.bin")),
        load=_import_marian,
    ),
    CheckpointFormat(
        description=f"a folder with an ONNX graph of a DistilBERT and its edit tags ({TAGS_FILE})",
        matches=is_edit_tagger,
        load=import_edit_tagger,
    ),
    CheckpointFormat(
        description="the .npz file of g2p-en, a GRU encoder-decoder",
        matches=is_g2p,
        load=import_g2p,
    ),
    CheckpointFormat(
        description="the folder of netra-transliterate, a GRU encoder-decoder with attention "
        f"(.keras, {VOCABULARY_FILE})",
        matches=is_netra,
        load=import_netra,
    ),
)


def _checked(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    checkpoint = pad_heads(checkpoint)
    _check_tokens(checkpoint, path)
    return checkpoint


def _check_tokens(checkpoint: Checkpoint, path: Path) -> None:
    """Checks that every id of the tokenizer and every special token has an embedding."""
    size = checkpoint.config.vocabulary_size
    if not size:
        return
    special = msgspec.structs.asdict(checkpoint.special_tokens)
    if checkpoint.transcription is not None:
        special["of transcription"] = checkpoint.transcription.ids
    if checkpoint.ctc is not None:
        special["of transcription"] = checkpoint.ctc.ids
    for name, ids in special.items():
        for id_ in (ids,) if isinstance(ids, int) else ids or ():
            if not 0 <= id_ < size:
                raise SourceError(
                    f"{path}: the special token {name} has the id {id_}, but the model has only "
                    f"{size} tokens"
                )
    tokenizer = parse_tokenizer(checkpoint.tokenizer_json, path)
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= size:
        raise SourceError(
            f"{path}: the tokenizer has the id {largest}, but the model has only {size} tokens"
        )


def _load(
    format_: CheckpointFormat, path: Path, tower: str | None, vectors: EmbeddingKind | None
) -> Checkpoint:
    if tower is None and vectors is None:
        return format_.load(path)
    if format_.load is not _import_hugging_face:
        if tower is not None:
            raise UnsupportedError(f"--tower: {path} is one model: {format_.description}")
        raise UnsupportedError(f"--vectors: not for {path}, {format_.description}")
    return _import_hugging_face(path, tower, vectors)


def import_path(
    path: Path, tower: str | None = None, vectors: EmbeddingKind | None = None
) -> Checkpoint:
    """The checkpoint in the folder or file ``path``, whatever its format.

    Args:
        tower: the part of a model of images and texts to import: "image" or "text".
        vectors: the kind of vectors, for a model whose files do not say which it returns.

    Raises:
        SourceError: it does not exist or is damaged.
        UnsupportedError: an unknown format or family; the message lists the supported ones, or
            names the folder of a model nearby.
    """
    try:
        if not path.exists():
            raise SourceError(f"{path}: no such file or folder")
        if is_pickle(path):
            raise refusal([path], path.with_suffix(".safetensors"))
        for format_ in CHECKPOINT_FORMATS:
            if format_.matches(path):
                return _checked(_load(format_, path, tower, vectors), path)
        folders = folders_near(path)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    if folders:
        names = ", ".join(map(str, folders))
        raise UnsupportedError(f"{path} is not a model's folder; there is one in {names}")
    known = "\n".join(f"  {format_.description}" for format_ in CHECKPOINT_FORMATS)
    raise UnsupportedError(f"{path}: unknown format; supported formats:\n{known}")


def import_adapted(
    path: Path, base: Path, tower: str | None = None, vectors: EmbeddingKind | None = None
) -> Checkpoint:
    """The checkpoint in the folder ``base`` with the LoRA adapter in the folder ``path``.

    The other arguments and the errors are those of :func:`import_path`.
    """
    try:
        with adapted_folder(path, base) as folder:
            return _checked(_import_folder(replace(folder, tower=tower, vectors=vectors)), path)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
