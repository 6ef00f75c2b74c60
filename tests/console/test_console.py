"""The console, in a real browser: it shows what the models answer."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.channel import Security
from client.encoder_types import InputType
from client.sync import Client
from client.types import Message
from tests.environments import environment
from tests.frontends.conftest import DECODER, TRANSLATOR
from tests.frontends.conftest import every_task as every_task  # noqa: PLC0414
from tests.gliner_models import GLINER
from tests.pictures import picture
from tests.recordings import tone, wav
from tests.retrieval_models import MULTI_VECTOR, SPARSE
from tests.serving import ServerProcess, server_process

SELENIUM = "selenium==4.51.0"
OTHERS = ("tagger", "filler", "answerer", "corrector", "entailer")
IMAGE_MODELS, CAPTIONER = ("vit", "vit-embed", "vilbert"), "captioner"
# Names that a shell would change without quotes; and widths in pixels.
PICTURES = {"a cat's $1.png": 30, "`dog`.jpg": 50}
SPEECH_MODEL, SOUND_MODEL = "speech", "sounds"
RECORDING = 'my "voice" $2; \\.wav'
SHELL = 'it\'s "$HOME" `\\n`'  # as in ``browser.py``
TOKEN = "a-token-of-the-console"
PROGRAM = Path(__file__).with_name("browser.py")

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="chromium or chromedriver not found: `make tools` installs them",
)


@pytest.fixture(scope="module")
def server(
    every_task: Path,
    head_bundles: Path,
    image_bundles: Path,
    caption_bundles: Path,
    speech_bundles: Path,
    audio_bundles: Path,
    retrieval_bundles: Path,
    gliner_bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("console")
    shutil.copytree(every_task, folder / "bundles")
    for root, names in (
        (head_bundles, OTHERS),
        (image_bundles, IMAGE_MODELS),
        (caption_bundles, (CAPTIONER,)),
        (speech_bundles, (SPEECH_MODEL,)),
        (audio_bundles, (SOUND_MODEL,)),
        (retrieval_bundles, (SPARSE, MULTI_VECTOR)),
        (gliner_bundles, (GLINER,)),
    ):
        for name in names:
            shutil.copytree(root / name, folder / "bundles" / name)
    (folder / "tokens").write_text(f"console:{TOKEN}\n")
    options = ("--threads", "1", "--tokens", str(folder / "tokens"))
    with server_process(folder / "bundles", *options) as running:
        yield running


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with :data:`PICTURES` and :data:`RECORDING`."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / RECORDING).write_bytes(wav(tone(3.0, 16_000)))
    for seed, (name, width) in enumerate(PICTURES.items()):
        file_format = "PNG" if name.endswith("png") else "JPEG"
        (folder / name).write_bytes(picture(seed, file_format, (width, 40)))
    return folder


@pytest.fixture(scope="module")
def seen(server: ServerProcess, pictures: Path) -> Any:
    """What the browser saw."""
    command = [str(environment(SELENIUM) / "python"), str(PROGRAM), server.http_url, TOKEN]
    command += [str(pictures / name) for name in (RECORDING, *PICTURES)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60, security=Security(token=TOKEN)) as client:
        yield client


def test_models_need_a_token(seen: Any) -> None:
    assert seen["without"] == "The server needs a valid token."
    assert seen["rejected"] == ["The server needs a valid token.", 0]
    refused = [entry for entry in seen["log"] if "/v1/models" in entry and "401" in entry]
    assert len(refused) == 2


def test_every_task_has_an_answer(seen: Any) -> None:
    answers = [answer for model in seen["answers"].values() for answer in model.values()]
    assert len(seen["answers"]) == 19
    assert all(answer and not answer.startswith("error") for answer in answers)


def test_generated_texts_are_those_of_the_model(seen: Any, client: Client) -> None:
    answers = seen["answers"][DECODER]
    text = client.generate(DECODER, "The three kinds of Transformer are", max_new_tokens=64)
    assert answers["Generate"] == text.outputs[0].text.strip()
    translated = client.translate(TRANSLATOR, "The children were playing in the garden.")
    assert seen["answers"][TRANSLATOR][""] == translated.outputs[0].text


def test_a_conversation_has_its_earlier_messages(seen: Any, client: Client) -> None:
    text = "Why is the sky blue?"
    question = Message("user", text)
    first = client.generate(DECODER, messages=[question], max_new_tokens=128).outputs[0].text
    messages = [question, Message("assistant", first), question]
    second = client.generate(DECODER, messages=messages, max_new_tokens=128).outputs[0].text
    answers = seen["answers"][DECODER]
    assert answers["Chat"].split() == [*text.split(), *first.split()]
    assert answers["Chat again"].split() == [*text.split(), *second.split()]


def test_scores_are_those_of_the_model(seen: Any, client: Client) -> None:
    output = client.classify("sorter", ["a fast web server with support for TLS"]).outputs[0]
    best = output.labels[0]
    assert f"{best.label} {best.score:.3f}" in seen["answers"]["sorter"][""]


def test_labels_of_the_request_have_scores(seen: Any, client: Client) -> None:
    text, labels = "a fast web server with support for TLS", ["software", "an animal"]
    (output,) = client.classify("entailer", text, candidate_labels=labels).outputs
    shown = [f"{each.label} {each.score:.3f}" for each in output.labels]
    assert seen["candidates"].split("\n") == shown


def test_entities_have_labels_of_the_request(seen: Any, client: Client) -> None:
    text = "My name is John Smith and I live in Lisbon."
    (output,) = client.tag(GLINER, text, candidate_labels=["person", "city"]).outputs
    shown, end = "", 0
    for entity in output.entities:
        shown += text[end : entity.end] + entity.label
        end = entity.end
    assert output.entities
    assert seen["answers"][GLINER][""].split() == (shown + text[end:]).split()


def test_sparse_vectors_are_the_models(seen: Any, client: Client) -> None:
    lines = seen["answers"][SPARSE]["Embed"].split("\n")
    for text, output in zip(
        ("a cat", "a kitten"), client.embed(SPARSE, ["a cat", "a kitten"]).outputs, strict=True
    ):
        assert output.sparse is not None
        at = lines.index(f"{text}: 12 of {len(output.sparse.values)} weights")
        shown = [line.split() for line in lines[at + 1 : at + 13]]
        assert shown == [[token, f"{value:.3f}"] for token, value in output.sparse.top(12)]


def test_late_interaction_is_the_rerank_score(seen: Any, client: Client) -> None:
    note, head, *rows = seen["answers"][MULTI_VECTOR]["Embed"].split("\n")
    query, document = "a small pet", "She keeps a goldfish in the kitchen."
    (ranked,) = client.rerank(MULTI_VECTOR, query, [document]).outputs
    assert note.startswith(f"Score {ranked.score:.3f}:")
    ours, theirs = (
        client.embed(MULTI_VECTOR, text, input_type=input_type).outputs[0].tokens
        for text, input_type in ((query, InputType.QUERY), (document, InputType.DOCUMENT))
    )
    assert head.split() == [token.token for token in theirs]
    assert [row.split()[0] for row in rows] == [token.token for token in ours]
    assert seen["highest"] == [f"{max(map(float, row.split()[1:])):.3f}" for row in rows]


def test_pictures_have_previews_and_results(seen: Any, client: Client, pictures: Path) -> None:
    widths = {name: found for name, found in seen["widths"].items() if found}
    assert widths == {"vit": [30], "vit-embed": [30, 50], "vilbert": [30], CAPTIONER: [30]}
    files = [(pictures / name).read_bytes() for name in PICTURES]
    for name, output in (
        ("vit", client.classify("vit", files[0])),
        ("vilbert", client.classify("vilbert", pairs=[("Is there a cat?", files[0])])),
    ):
        best = output.outputs[0].labels[0]
        assert f"{best.label} {best.score:.3f}" in seen["answers"][name][""]
    (described,) = client.generate(CAPTIONER, images=files[0], max_new_tokens=64).outputs
    assert " ".join(seen["answers"][CAPTIONER][""].split()) == " ".join(described.text.split())
    one, other = (np.array(x.values) for x in client.embed("vit-embed", files).outputs)
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    assert f"`dog`.jpg {cosine:.3f} 1.000" in seen["answers"]["vit-embed"][""]
    assert seen["no_picture"] == "error: image_input: must not be empty"


def test_segments_have_their_times(seen: Any, client: Client, pictures: Path) -> None:
    file = (pictures / RECORDING).read_bytes()
    for shown, options in (
        (seen["answers"][SPEECH_MODEL][""], {}),
        (seen["translated"], {"language": "de", "prompt": SHELL, "translate": True}),
    ):
        expected = client.transcribe(SPEECH_MODEL, file, **options)  # type: ignore[arg-type]
        assert shown.count(" – 0:") == len(expected.segments)
        assert f"– 0:{expected.segments[-1].end_seconds:05.2f}" in shown
        assert shown.split("\n")[-1].endswith(", 0:03.00")
    assert seen["translated"].split("\n")[-1] == "english, 0:03.00"
    assert seen["no_recording"] == "error: file: is required"


def test_a_recording_has_labels(seen: Any, client: Client, pictures: Path) -> None:
    (output,) = client.classify(SOUND_MODEL, audio=(pictures / RECORDING).read_bytes()).outputs
    shown = seen["answers"][SOUND_MODEL][""]
    for label in output.labels:
        assert f"{label.label} {label.score:.3f}" in shown


def test_a_recording_of_the_microphone_is_transcribed(seen: Any) -> None:
    assert re.search(r"(english|german|french|silence), 0:0\d\.\d\d$", seen["recorded"])


def test_commands_read_recordings_from_their_files(
    seen: Any, client: Client, pictures: Path
) -> None:
    options = f"curl --silent -H 'authorization: Bearer {TOKEN}' "
    command = seen["speech_command"].replace("curl ", options, 1)
    ran = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=True, cwd=pictures
    )
    *_, last, done, empty = ran.stdout.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    file = (pictures / RECORDING).read_bytes()
    expected = client.transcribe(SPEECH_MODEL, file, language="de", prompt=SHELL)
    assert json.loads(last.removeprefix("data: "))["text"] == expected.text


def test_texts_never_become_markup(seen: Any) -> None:
    text, num_elements = seen["markup"]
    assert "<b>bold</b> 1.000" in text
    assert num_elements == 0


def test_errors_name_the_field(seen: Any) -> None:
    assert seen["error"].startswith("error: ")
    assert "temperature" in seen["error"]


def test_charts_show_the_load(seen: Any) -> None:
    numbers = dict(reversed(chart.split("\n")[:2]) for chart in seen["charts"])
    assert {"Calls/s", "Tokens out/s", "Running", "Memory, MB"} <= set(numbers)
    assert float(numbers["Memory, MB"].replace(",", "")) > 10


@pytest.mark.usefixtures("server")
def test_commands_run_in_a_shell(seen: Any) -> None:
    command = f"{seen['command']} --silent -H 'authorization: Bearer {TOKEN}'"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["model_name"] == "embedder"


def test_commands_read_pictures_from_their_files(seen: Any, client: Client, pictures: Path) -> None:
    options = f"curl --silent -H 'authorization: Bearer {TOKEN}' "
    command = seen["image_command"].replace("curl ", options, 1)
    ran = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=True, cwd=pictures
    )
    outputs = {output["name"]: output["data"] for output in json.loads(ran.stdout)["outputs"]}
    pairs = [(SHELL, (pictures / next(iter(PICTURES))).read_bytes())]
    labels = client.classify("vilbert", pairs=pairs).outputs[0].labels
    assert outputs["labels"] == [label.label for label in labels]
    assert outputs["scores"] == pytest.approx([label.score for label in labels], rel=1e-5)


def test_the_browser_finds_nothing_wrong(seen: Any) -> None:
    """Except for statuses that the page shows."""
    assert [entry for entry in seen["log"] if "status of 40" not in entry] == []


@pytest.mark.parametrize("path", ["/", "/console/", "/console/console.js"])
def test_the_page_may_load_nothing_from_elsewhere(server: ServerProcess, path: str) -> None:
    with urllib.request.urlopen(server.http_url + path, timeout=60) as answer:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "http" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
