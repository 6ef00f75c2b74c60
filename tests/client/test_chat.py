"""``triune chat`` against a server whose model has a chat template, by lines and in a terminal."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import server_process

pytestmark = pytest.mark.slow  # starts many processes

ROOT = Path(__file__).parents[2]
# The whole conversation, so that an answer depends on the earlier ones.
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def target(tiny_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("chat")
    shutil.copytree(tiny_bundles / "tiny-decoder", root / "tiny-decoder")
    manifest = root / "tiny-decoder" / "1" / "bundle.json"
    content = json.loads(manifest.read_text()) | {"chat_template": TEMPLATE}
    manifest.write_text(json.dumps(content))
    shutil.copytree(tiny_bundles / "dates", root / "dates")
    with server_process(root, "--threads", "1") as running:
        yield running.target


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "client", "chat", "--model", "tiny-decoder", *arguments]


def run(target: str, stdin: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env={**os.environ, "TRIUNE_TARGET": target},
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_answers_follow_the_whole_conversation(target: str) -> None:
    ran = run(target, "7,\n\n 21,\n", "--max-new-tokens", "3")
    assert (ran.returncode, ran.stderr) == (0, "")
    first, second = ran.stdout.splitlines()
    generate = [sys.executable, "-m", "client", "generate", "--max-new-tokens", "3"]
    expected = subprocess.run(
        [*generate, "--model", "tiny-decoder", "7,", f"7,{first} 21,"],
        cwd=ROOT,
        env={**os.environ, "TRIUNE_TARGET": target},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert [first, second] == expected.stdout.splitlines()


def test_a_message_that_fails_is_left_out(target: str) -> None:
    ran = run(target, f"{'9' * 5000}\n7,\n", "--max-new-tokens", "3")
    assert ran.returncode == 0
    assert ran.stderr.startswith("error: INVALID_ARGUMENT")
    assert ran.stdout == run(target, "7,\n", "--max-new-tokens", "3").stdout


def test_a_long_conversation_goes_on_without_its_beginning(target: str) -> None:
    lines = [f"{digit * 200}," for digit in "789"]  # the model reads 256 tokens
    ran = run(target, "\n".join(lines), "--max-new-tokens", "3")
    assert (ran.returncode, ran.stderr) == (0, "")
    alone = [run(target, line, "--max-new-tokens", "3").stdout for line in lines]
    assert ran.stdout == "".join(alone)


def test_a_model_without_a_chat_template_is_a_usage_error(target: str) -> None:
    ran = run(target, "7,\n", "--model", "dates")
    assert ran.returncode == 2
    assert "'dates' has no chat template" in ran.stderr


def test_a_terminal_has_a_prompt_and_ctrl_c_ends_an_answer(target: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        # A shell's background jobs ignore Ctrl-C, and so would this one.
        ["env", "--default-signal=INT", *command("--ignore-eos")],
        cwd=ROOT,
        env={**os.environ, "TRIUNE_TARGET": target, "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    shown = b""

    def read_until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            assert select.select([ours], [], [], 60)[0], f"no {text!r} in {shown!r}"
            shown += os.read(ours, 1024)
        shown = shown.partition(text)[2]

    with process:
        read_until(b"> ")
        os.write(ours, b"7,\n")
        read_until(b"7,\r\n")  # the echo of the line
        if not shown:
            shown += os.read(ours, 1)
        process.send_signal(signal.SIGINT)
        read_until(b"> ")
        os.write(ours, b"\x04")  # Ctrl-D
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    os.close(ours)
