"""``huggingface_hub.InferenceClient``, unmodified, against the same calls by gRPC."""

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError, ValidationError

from client.encoder_options import Question, ScoreFunction
from client.sync import Client
from tests.frontends.conftest import CLASSIFIER, DECODER, EMBEDDER, TRANSLATOR
from tests.heads import NAMES
from tests.pictures import picture
from tests.recordings import tone, wav
from tests.serving import ServerProcess, server_process

PROMPT, DATE = "7,8,", "3 March 2021"
TEXT, QUESTION = "a cat sat on the mat", "who sat?"
QUESTIONS = [Question(question=QUESTION, context=TEXT)]

Connect = Callable[[str], Any]


@pytest.fixture(scope="module")
def server(
    every_task: Path, head_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("pipelines")
    for source, names in ((every_task, (DECODER, TRANSLATOR)), (head_bundles, NAMES)):
        for name in names:
            shutil.copytree(source / name, root / name)
    with server_process(root, "--threads", "1", "--tei-model", EMBEDDER) as running:
        yield running


@pytest.fixture
def connect(server: ServerProcess) -> Iterator[Connect]:
    clients = []

    def connected(model: str) -> InferenceClient:
        clients.append(InferenceClient(model=f"{server.http_url}/{model}", timeout=60))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def own(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target) as client:
        yield client


def test_embeddings(connect: Connect, own: Client, http: httpx2.Client) -> None:
    vectors = connect(EMBEDDER).feature_extraction(["a", "b"])
    outputs = own.embed(EMBEDDER, ["a", "b"], normalize=True).outputs
    assert vectors.tolist() == [pytest.approx(list(output.values)) for output in outputs]
    shorter = connect(EMBEDDER).feature_extraction("a " * 100, truncate=True, normalize=False)
    assert shorter.shape == (1, 32)
    similar = connect(EMBEDDER).sentence_similarity("a", ["a", "b"])
    assert similar == pytest.approx([1.0, float(vectors[0] @ vectors[1])], abs=1e-5)
    assert http.post("/", json={"inputs": "a"}).json() == [pytest.approx(vectors[0].tolist())]


def test_labels(connect: Connect, own: Client) -> None:
    found = connect(CLASSIFIER).text_classification(TEXT, function_to_apply="softmax", top_k=2)
    (output,) = own.classify(
        CLASSIFIER, TEXT, score_function=ScoreFunction.SOFTMAX, top_k=2
    ).outputs
    assert [(each.label, each.score) for each in found] == [
        (each.label, pytest.approx(each.score)) for each in output.labels
    ]
    labels = ["sport", "weather"]
    chosen = connect("entailer").zero_shot_classification(
        TEXT, labels, multi_label=True, hypothesis_template="This is {}."
    )
    (output,) = own.classify(
        "entailer",
        TEXT,
        candidate_labels=labels,
        multi_label=True,
        hypothesis_template="This is {}.",
    ).outputs
    assert [(each.label, each.score) for each in chosen] == [
        (each.label, pytest.approx(each.score)) for each in output.labels
    ]


def test_entities(connect: Connect, own: Client) -> None:
    found = connect("tagger").token_classification(TEXT, ignore_labels=["B-LOC"])
    (output,) = own.tag("tagger", TEXT, ignored_labels=["B-LOC"]).outputs
    assert [(each.entity_group, each.word, each.start, each.end) for each in found] == [
        (each.label, each.text, each.start, each.end) for each in output.entities
    ]
    tokens = connect("tagger").token_classification(TEXT, aggregation_strategy="none")
    assert {token.entity for token in tokens} <= {"B-PER", "I-PER", "B-LOC", "I-LOC"}
    assert all(token.entity_group is None for token in tokens)


def test_masks(connect: Connect, own: Client, http: httpx2.Client) -> None:
    found = connect("filler").fill_mask("a [MASK] sat", top_k=3)
    (output,) = own.fill_mask("filler", "a [MASK] sat", top_k=3).outputs
    (mask,) = output.masks
    assert [(each.token_str, each.token, each.score, each.sequence) for each in found] == [
        (each.text, each.token_id, pytest.approx(each.score), f"a {each.text} sat")
        for each in mask.candidates
    ]
    several = http.post("/filler", json={"inputs": "a [MASK] [MASK] sat"}).json()
    assert [len(each) for each in several] == [5, 5]
    assert several[1][0]["sequence"].startswith("a [MASK] ")


def test_answers(connect: Connect, own: Client) -> None:
    best = connect("answerer").question_answering(QUESTION, TEXT)
    found = connect("answerer").question_answering(QUESTION, TEXT, top_k=3, max_answer_len=2)
    (output,) = own.answer("answerer", QUESTIONS, top_k=3, max_answer_tokens=2).outputs
    assert isinstance(found, list)
    assert [(each.answer, each.start, each.end) for each in found] == [
        (each.text, each.start, each.end) for each in output.spans
    ]
    (own_best,) = own.answer("answerer", QUESTIONS).outputs[0].spans
    assert not isinstance(best, list)
    assert (best.answer, best.score) == (own_best.text, pytest.approx(own_best.score))


def test_translations(connect: Connect, own: Client, http: httpx2.Client) -> None:
    (output,) = own.translate(TRANSLATOR, DATE).outputs
    assert connect(TRANSLATOR).translation(DATE).translation_text == output.text
    short = connect(TRANSLATOR).translation(
        DATE, generate_parameters={"max_new_tokens": 3, "num_beams": 2}
    )
    (expected,) = own.translate(TRANSLATOR, DATE, max_new_tokens=3, beam_size=2).outputs
    assert short.translation_text == expected.text
    both = http.post(f"/{TRANSLATOR}", json={"inputs": [DATE, DATE]}).json()
    assert both == [{"translation_text": output.text}] * 2


def test_generated_text(connect: Connect, own: Client) -> None:
    client = connect(DECODER)
    (output,) = own.generate(DECODER, PROMPT, max_new_tokens=6, logprobs=True).outputs
    assert client.text_generation(PROMPT, max_new_tokens=6) == output.text
    full = client.text_generation(PROMPT, max_new_tokens=6, return_full_text=True)
    assert full == PROMPT + output.text
    whole: Any = client.text_generation(
        PROMPT, max_new_tokens=6, details=True, decoder_input_details=True, top_n_tokens=2
    )
    details = whole.details
    assert (details.finish_reason, details.generated_tokens) == ("length", 6)
    assert "".join(token.text for token in details.tokens) == output.text
    assert [token.logprob for token in details.tokens] == pytest.approx(
        [token.logprob for token in output.logprobs]
    )
    assert [len(tokens) for tokens in details.top_tokens] == [2] * 6
    assert details.prefill[0].logprob is None
    assert all(token.logprob < 0 for token in details.prefill[1:])
    assert "".join(token.text for token in details.prefill) == f"<s>{PROMPT}"
    pieces = list(client.text_generation(PROMPT, max_new_tokens=6, stream=True))
    assert (len(pieces), "".join(pieces)) == (6, output.text)
    digits = client.text_generation(
        PROMPT, max_new_tokens=9, grammar={"type": "regex", "value": "[0-9]{3}"}
    )
    assert digits.isdecimal()


def test_options_of_sampling_select_it(connect: Connect, own: Client) -> None:
    sampled = connect(DECODER).text_generation(PROMPT, max_new_tokens=20, temperature=5.0, seed=1)
    (output,) = own.generate(DECODER, PROMPT, max_new_tokens=20, temperature=5.0, seed=1).outputs
    (greedy,) = own.generate(DECODER, PROMPT, max_new_tokens=20).outputs
    assert sampled == output.text != greedy.text
    drawn = connect(DECODER).text_generation(PROMPT, max_new_tokens=20, do_sample=True, seed=1)
    (output,) = own.generate(DECODER, PROMPT, max_new_tokens=20, temperature=1.0, seed=1).outputs
    assert drawn == output.text


def test_the_end_of_a_stream_has_the_text(connect: Connect, own: Client) -> None:
    (output,) = own.generate(DECODER, PROMPT, max_new_tokens=6).outputs
    stop = output.text[3:5]
    for options, reason in (
        ({"max_new_tokens": 6}, "length"),
        ({"max_new_tokens": 6, "stop": [stop]}, "stop_sequence"),
        ({"max_new_tokens": 100}, "eos_token"),
    ):
        *others, last = connect(DECODER).text_generation(
            PROMPT, stream=True, details=True, **options
        )
        assert all(each.generated_text is None and each.details is None for each in others)
        assert last.details.finish_reason == reason
        assert last.generated_text == "".join(each.token.text for each in (*others, last))
        if reason == "stop_sequence":
            assert last.generated_text == output.text[: output.text.index(stop)]


def test_chat_names_the_model_by_its_address(connect: Connect, http: httpx2.Client) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    chat = connect(DECODER).chat_completion(messages, max_tokens=4, temperature=0)
    body = {"model": DECODER, "messages": messages, "max_tokens": 4, "temperature": 0}
    expected = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert chat.choices[0].message.content == expected["message"]["content"]
    assert chat.model == DECODER
    with pytest.raises(BadRequestError, match="max_tokens"):
        connect(DECODER).chat_completion(messages, max_tokens=-1)


@pytest.mark.parametrize(
    ("model", "body", "field"),
    [
        (DECODER, {"inputs": "a", "parameters": {"temperature": -1}}, "parameters.temperature"),
        (DECODER, {"inputs": "a", "parameters": {"truncate": 5}}, "parameters.truncate"),
        (DECODER, {"inputs": "a", "parameters": {"best_of": 2}}, "parameters.best_of"),
        (DECODER, {"inputs": "a", "parameters": {"nothing": 2}}, "parameters.nothing"),
        (
            DECODER,
            {"inputs": "a", "parameters": {"max_new_tokens": 0}},
            "parameters.max_new_tokens",
        ),
        (DECODER, {"inputs": ["a"]}, "inputs"),
        (DECODER, {"inputs": ""}, "inputs"),
        (DECODER, {"inputs": "a", "normalize": True}, "normalize"),
        (
            TRANSLATOR,
            {"inputs": "a", "parameters": {"generate_parameters": {"num_beams": 99}}},
            "parameters.generate_parameters.num_beams",
        ),
        (TRANSLATOR, {"inputs": "a", "parameters": {"src_lang": "x"}}, "parameters.src_lang"),
        (TRANSLATOR, {"inputs": "a", "stream": True}, "stream"),
        (EMBEDDER, {"inputs": ["a", ""]}, "inputs[1]"),
        (EMBEDDER, {"inputs": "a " * 100}, "inputs"),
        (EMBEDDER, {"inputs": {"source_sentence": "a"}}, "inputs.sentences"),
        (EMBEDDER, {"inputs": "a", "parameters": {"top_k": 1}}, "parameters.top_k"),
        (CLASSIFIER, {"inputs": "a", "parameters": {"top_k": -1}}, "parameters.top_k"),
        (
            "entailer",
            {"inputs": "a", "parameters": {"candidate_labels": ["a", " "]}},
            "parameters.candidate_labels[1]",
        ),
        ("tagger", {"inputs": {"question": "a"}}, "inputs"),
        ("tagger", {"inputs": "a", "parameters": {"stride": -1}}, "parameters.stride"),
        ("filler", {"inputs": "a"}, "inputs"),
        (
            "filler",
            {"inputs": "[MASK]" + " " * (1 << 19), "parameters": {"top_k": 100}},
            "parameters.top_k",
        ),
        ("answerer", {"inputs": "a"}, "inputs"),
        ("answerer", {"inputs": {"question": "a", "context": ""}}, "inputs.context"),
        (
            "answerer",
            {"inputs": {"question": "a", "context": "b"}, "parameters": {"doc_stride": -1}},
            "parameters.doc_stride",
        ),
        ("corrector", {"inputs": "a"}, "model"),
    ],
)
def test_errors_name_the_field(
    http: httpx2.Client, model: str, body: dict[str, Any], field: str
) -> None:
    answer = http.post(f"/{model}", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert (error["error"].partition(": ")[0], error["error_type"]) == (field, "validation")


def test_clients_know_the_kinds_of_errors(connect: Connect, http: httpx2.Client) -> None:
    with pytest.raises(ValidationError, match="top_p"):
        connect(DECODER).text_generation(PROMPT, top_p=2.0)
    with pytest.raises(BadRequestError, match="inputs: is empty"):
        connect("tagger").token_classification("")
    with pytest.raises(HfHubHTTPError, match="model 'nothing' is not served"):
        connect("nothing").text_classification("a")
    for body in ({"inputs": "a"}, {"input": "a"}):  # of this protocol, and of another
        answer = http.post("/nothing", json=body)
        assert (answer.status_code, "'nothing' is not served" in answer.text) == (404, True)
    for method, path in (("GET", f"/{DECODER}"), ("GET", "/nothing")):
        answer = http.request(method, path)
        assert (answer.status_code, answer.json()) == (
            404,
            {"error": f"there is nothing at {path}"},
        )


@pytest.fixture(scope="module")
def files_server(
    image_bundles: Path,
    caption_bundles: Path,
    speech_bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("files")
    models = ((image_bundles, "vit"), (caption_bundles, "captioner"), (speech_bundles, "speech"))
    for source, name in models:
        shutil.copytree(source / name, root / name)
    with server_process(root, "--threads", "1") as running:
        yield running


@pytest.mark.slow
def test_images(files_server: ServerProcess) -> None:
    image = picture()
    with (
        InferenceClient(model=f"{files_server.http_url}/vit") as client,
        Client(files_server.target) as own,
    ):
        (output,) = own.classify("vit", image).outputs
        expected = [(each.label, pytest.approx(each.score)) for each in output.labels]
        found = client.image_classification(image)
        assert [(each.label, each.score) for each in found] == expected
        best = client.image_classification(image, top_k=1)  # in base64
        assert [(each.label, each.score) for each in best] == expected[:1]
        with pytest.raises(BadRequestError, match="inputs: the image is not one of PNG"):
            client.image_classification(b"a picture")


@pytest.mark.slow
def test_texts_about_images(files_server: ServerProcess) -> None:
    image, url = picture(), f"{files_server.http_url}/captioner"
    with InferenceClient(model=url) as client, Client(files_server.target) as own:
        (output,) = own.generate("captioner", images=image).outputs
        assert client.image_to_text(image).generated_text == output.text
        with pytest.raises(BadRequestError, match="inputs: the image is not one of PNG"):
            client.image_to_text(b"a picture")
        (short,) = own.generate("captioner", images=image, max_new_tokens=4, beam_size=2).outputs
    encoded = base64.b64encode(image).decode()
    options = {"max_new_tokens": 4, "num_beams": 2}
    for parameters in (options, {"generation_parameters": options}):
        answer = httpx2.post(url, json={"inputs": encoded, "parameters": parameters}, timeout=60)
        assert answer.json() == [{"generated_text": short.text}]
    for body, message in (
        ({"inputs": "a cat!"}, "inputs: is not base64"),
        ({"inputs": encoded, "stream": True}, "stream: is not supported for images"),
        ({"inputs": encoded, "parameters": {"stop": ["a"]}}, "parameters.stop: is not supported"),
        ({"inputs": encoded, "parameters": {"num_beams": 99}}, "parameters.num_beams: "),
    ):
        answer = httpx2.post(url, json=body, timeout=60)
        assert answer.status_code == 400
        assert message in answer.json()["error"]


@pytest.mark.slow
def test_recordings(files_server: ServerProcess) -> None:
    recording = wav(tone(0.5, 16_000))
    url = f"{files_server.http_url}/speech"
    with InferenceClient(model=url) as client, Client(files_server.target) as own:
        expected = own.transcribe("speech", recording)
        assert client.automatic_speech_recognition(recording).text == expected.text
        options = {"return_timestamps": True, "generate_kwargs": {"language": "en"}}
        timed = client.automatic_speech_recognition(recording, extra_body=options)
        english = own.transcribe("speech", recording, language="en")
        assert timed.text == english.text
        assert [(chunk.text, chunk.timestamp) for chunk in timed.chunks or []] == [
            (each.text, pytest.approx([each.start_seconds, each.end_seconds], abs=1e-3))
            for each in english.segments
        ]
        for extra, field in (
            ({"generate_kwargs": {"num_beams": 99}}, "parameters.generate_kwargs.num_beams"),
            ({"generate_kwargs": {"top_k": 5}}, "parameters.generate_kwargs.top_k"),
            ({"top_k": 5}, "parameters.top_k"),
        ):
            with pytest.raises(BadRequestError, match=f"{field}: "):
                client.automatic_speech_recognition(recording, extra_body=extra)
    sent = httpx2.post(url, json={"inputs": base64.b64encode(recording).decode()}, timeout=60)
    assert sent.json() == {"text": expected.text}
