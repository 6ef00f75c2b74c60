"""Imported default models against independent readers of the same files.

``transformers`` reads MiniLM and SmolLM2 by itself; for Marian's format there is the reference
in ``tests.reference``. Packages needed: ``requirements-models.txt``.
"""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, Tokenizer
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, BertForMaskedLM
from transformers.integrations.gguf import convert_gguf_tokenizer  # type: ignore[attr-defined]

from export.checkpoint import Checkpoint
from export.sources import DEFAULT_SOURCES, load_checkpoint
from export.speech import SENTENCES as SPOKEN
from export.speech import SpeechReader
from model.bundle import Task
from model.kernels import Step
from model.positions import sinusoids
from model.transformer import from_weights
from tests.export.importers.support import logits, pooled
from tests.reference.marian import Reference
from tests.reference.smollm2 import gguf_by_transformers, smollm2_by_transformers
from tests.reference.whisper import whisper_by_transformers

PROMPTS = (
    "Why is the sky blue?",
    "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n",
    "In 1969, 2 astronauts walked on the Moon's surface.",
    "def f(x):\n    return x ** 2  # square\n\n\n",
    "Ação, naïve café — 漢字 и кириллица 🙂👍🏽",
    "  leading, trailing and   inner spaces  ",
    "<|endoftext|><repo_name>a/b<file_sep>",
)
SENTENCES = {
    "en-pt": (
        "Are you sure you want to delete this file?",
        "The meeting was moved to Thursday because of the storm.",
        "Connection refused: check that the server is running on port 8080.",
        "My grandmother used to bake bread every Sunday morning.",
        "How much does it cost?",
        "Select all",
        "He said (quietly) that nobody – not even his wife – had known.",
        "If it rains tomorrow, we will stay at home & watch a film.",
    ),
    "pt-en": (
        "Tem certeza de que deseja excluir este arquivo?",
        "A reunião foi adiada para quinta-feira por causa da tempestade.",
        "Conexão recusada: verifique se o servidor está em execução na porta 8080.",
        "Minha avó fazia pão todos os domingos de manhã.",
        "Quanto custa?",
        "Selecionar tudo",
        "Ele disse (em voz baixa) que ninguém sabia, nem mesmo a mulher dele.",
        "Se chover amanhã, ficaremos em casa.",
    ),
}


@cache
def real_strings() -> list[str]:
    """Lines of prose and markup from the metadata of the installed packages."""
    site = DEFAULT_SOURCES["minilm"].locate().parents[1]
    lines = {
        line
        for path in sorted(site.glob("*.dist-info/METADATA"))
        for line in path.read_text("utf-8").splitlines()
        if line.strip()
    }
    return sorted(lines)


@cache
def checkpoint(name: str) -> Checkpoint:
    return load_checkpoint(name)


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_str(checkpoint(name).tokenizer_json)


def test_default_models_have_their_metadata() -> None:
    tasks = {name: checkpoint(name).tasks for name in DEFAULT_SOURCES}
    assert tasks == {
        "minilm": (Task.EMBED, Task.RERANK),
        "smollm2": (Task.GENERATE,),
        "en-pt": (Task.TRANSLATE,),
        "pt-en": (Task.TRANSLATE,),
        "pii": (Task.TAG,),
        "bert-tiny": (Task.FILL_MASK,),
        "grammar": (Task.CORRECT,),
        "g2p": (Task.GENERATE,),
        "netra": (Task.GENERATE,),
        "whisper": (Task.TRANSCRIBE,),
    }
    for name, source in DEFAULT_SOURCES.items():
        assert checkpoint(name).name == name
        assert checkpoint(name).license == source.license
        assert len(checkpoint(name).sample_inputs) >= (0 if name == "whisper" else 3)
    assert checkpoint("en-pt").max_length_factor == 2.5
    assert checkpoint("pt-en").source_language == "pt"
    assert checkpoint("pt-en").target_language == "en"


def test_minilm_embeddings_match_transformers() -> None:
    texts = [*PROMPTS, *(text for texts in SENTENCES.values() for text in texts)]
    model = AutoModel.from_pretrained(DEFAULT_SOURCES["minilm"].locate()).eval()
    slow = AutoTokenizer.from_pretrained(DEFAULT_SOURCES["minilm"].locate())
    ours = tokenizer("minilm")
    for text in texts:
        ids = ours.encode(text).ids
        assert ids == slow(text)["input_ids"]
        batch = torch.tensor([ids])
        with torch.no_grad():
            expected = functional.normalize(model(batch).last_hidden_state.mean(1), dim=-1)
        actual = pooled(checkpoint("minilm"), batch, torch.tensor([len(ids)]))
        assert functional.cosine_similarity(actual, expected).item() >= 0.9999
        assert actual.norm().item() == pytest.approx(1, abs=1e-5)


def test_smollm2_weights_and_logits_match_transformers() -> None:
    weights, theirs = checkpoint("smollm2").weights, gguf_by_transformers()["tensors"]
    layer = "model.layers.0"
    qkv = torch.cat([theirs[f"{layer}.self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(weights["decoder.layers.0.mixer.qkv.weight"], qkv.T)
    gate_up = torch.cat([theirs[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up")])
    assert torch.equal(weights["decoder.layers.0.feed_forward.input.weight"], gate_up.T)
    model = smollm2_by_transformers()
    ids = torch.tensor([tokenizer("smollm2").encode("\n".join(PROMPTS)).ids])
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(logits(checkpoint("smollm2"), ids), expected, rtol=0, atol=5e-4)


def test_smollm2_tokens_match_transformers_except_digit_splits() -> None:
    theirs, _ = convert_gguf_tokenizer("llama", gguf_by_transformers()["tokenizer"])
    ours = tokenizer("smollm2")
    markers = AddedToken("<|im_start|>"), AddedToken("<|im_end|>")
    theirs.add_special_tokens([*markers, AddedToken("<|endoftext|>")])
    for text in (*PROMPTS, *SENTENCES["en-pt"], *SENTENCES["pt-en"], *real_strings()[::10]):
        if not re.search(r"\d|<repo_name>", text):
            assert ours.encode(text).ids == theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode("x 1969").tokens == ["x", "Ġ", "1", "9", "6", "9"]


def test_smollm2_text_round_trips_and_chat_markers_are_tokens() -> None:
    ours = tokenizer("smollm2")
    for prompt in PROMPTS:
        assert ours.decode(ours.encode(prompt).ids, skip_special_tokens=False) == prompt
    markers = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert [ours.encode(mark).ids for mark in markers] == [[0], [1], [2]]
    assert ours.decode([1, *ours.encode("user").ids, 2]) == "user"
    assert checkpoint("smollm2").special_tokens.eos == (2, 0, 4)  # and <|endoftext|>, <reponame>
    assert "<|im_start|>" in (checkpoint("smollm2").chat_template or "")


def paths(name: str) -> dict[str, Path]:
    folder = DEFAULT_SOURCES[name].locate()
    return {"model": next(folder.glob("model.*.bin")), "vocabulary": next(folder.glob("*.spm"))}


@torch.no_grad()
def translate(name: str, source: list[int], num_steps: int) -> list[int]:
    """Greedy decoding, token by token, with the eager module."""
    special = checkpoint(name).special_tokens
    model = from_weights(checkpoint(name).config, checkpoint(name).weights)
    lengths = torch.tensor([len(source)], dtype=torch.int32)
    states = model.encode_source(torch.tensor([source]), lengths)
    tokens: list[int] = []
    token = special.decoder_start
    for cached in range(num_steps):
        step = Step(
            num_cached_tokens=torch.tensor([cached], dtype=torch.int32),
            num_new_tokens=torch.tensor([1], dtype=torch.int32),
            max_total_length=torch.tensor(cached + 1, dtype=torch.int32),
            source_lengths=lengths,
            max_source_length=lengths.amax(),
        )
        hidden, states = model.decode(torch.tensor([[token]]), step, states)
        scores = model.logits(hidden)[0, -1]
        scores[list(special.suppressed)] = -torch.inf
        token = int(scores.argmax())
        if token in special.eos:
            break
        tokens.append(token)
    return tokens


@pytest.mark.parametrize("name", SENTENCES)
def test_translations_match_the_reference_token_for_token(name: str) -> None:
    reference = Reference(paths(name)["model"])
    library = SentencePieceProcessor(str(paths(name)["vocabulary"]))
    for sentence in SENTENCES[name]:
        source = [*library.encode(sentence), 0]
        assert tokenizer(name).encode(sentence).ids == source
        num_steps = int(2.5 * len(source))
        tokens = translate(name, source, num_steps)
        best = reference.logits(source, tokens).argmax(-1).tolist()
        assert best == [*tokens, 0], sentence
        assert tokenizer(name).decode(tokens) == library.decode(tokens)


@pytest.mark.parametrize("name", SENTENCES)
def test_marian_tokens_match_sentencepiece_on_real_strings(name: str) -> None:
    library = SentencePieceProcessor(str(paths(name)["vocabulary"]))
    texts = real_strings()
    assert len(texts) > 2_000
    ours = [encoding.ids for encoding in tokenizer(name).encode_batch(texts)]
    theirs = [[*ids, 0] for ids in library.encode(texts)]
    pairs = zip(texts, ours, theirs, strict=True)
    different = [text for text, ids, expected in pairs if ids != expected]
    # Two segmentations of equal score (see export.tokenization.sentence_piece) may differ.
    assert len(different) <= len(texts) // 1_000, different
    assert [tokenizer(name).decode(ids) for ids in theirs] == library.decode(theirs)


def test_fill_mask_logits_match_transformers() -> None:
    """The checkpoint has TensorFlow's layer norm names, gamma and beta."""
    theirs = BertForMaskedLM.from_pretrained(DEFAULT_SOURCES["bert-tiny"].locate()).eval()
    ours = from_weights(checkpoint("bert-tiny").config, checkpoint("bert-tiny").weights)
    for text in ("Paris is the [MASK] of France.", *checkpoint("bert-tiny").sample_inputs):
        ids = torch.tensor([tokenizer("bert-tiny").encode(text).ids])
        with torch.no_grad():
            hidden = ours.encode(ids, torch.tensor([ids.shape[1]]), torch.zeros_like(ids))
            expected = theirs(ids).logits
        torch.testing.assert_close(ours.logits(hidden), expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_whisper_logits_match_transformers() -> None:
    """Real speech. The file has sinusoids in fp16, ours are exact: theirs are replaced."""
    imported = checkpoint("whisper")
    ours, theirs = from_weights(imported.config, imported.weights), whisper_by_transformers()
    assert ours.audio is not None
    saved = theirs.model.encoder.embed_positions.weight
    torch.testing.assert_close(saved, sinusoids(*saved.shape), rtol=0, atol=1e-3)
    saved.copy_(sinusoids(*saved.shape))
    reader = SpeechReader.of(imported)
    assert reader is not None
    for window in reader.windows(SPOKEN, 2):
        samples, target = torch.from_numpy(window.samples)[None], torch.tensor([window.target])
        spectrogram = ours.audio.spectrogram(samples).transpose(1, 2)
        expected = theirs(input_features=spectrogram, decoder_input_ids=target).logits
        lengths = (torch.tensor([length]) for length in (len(window.target), len(window)))
        step = Step.whole(*lengths)
        actual = ours.logits(ours.decode(target, step, ours.encode_audio(samples)).hidden)
        torch.testing.assert_close(
            actual, expected, rtol=0, atol=1e-5 * float(expected.abs().max())
        )
        # What is said is likely; at random, each token has -10.9 nats.
        said = actual[0].log_softmax(-1).gather(1, target[0, 1:, None])[4:]
        assert float(said.mean()) > -2


def test_whisper_has_its_languages_and_tokens() -> None:
    imported = checkpoint("whisper")
    assert len(imported.languages) == 99
    assert imported.languages["en"] == 50259
    assert imported.special_tokens.decoder_start == 50258
    assert imported.special_tokens.eos == (50257,)
    assert len(imported.special_tokens.suppressed) == 88
    tokens = imported.transcription
    assert tokens is not None
    assert (tokens.first_timestamp, tokens.num_timestamps) == (50364, 1501)
    assert (tokens.translate, tokens.transcribe) == (50358, 50359)
    assert (tokens.previous, tokens.no_speech, tokens.no_timestamps) == (50361, 50362, 50363)
    assert tokens.first_suppressed == (220, 50257)
