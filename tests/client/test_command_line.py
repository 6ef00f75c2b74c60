"""``python -m client`` as a user runs it, against a real server."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts many processes

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
DATE = "3 March 2021"


@pytest.fixture
def run(target: str) -> Run:
    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "client", *arguments],
            cwd=ROOT,
            env={**os.environ, "TRIUNE_TARGET": target},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def test_translate(run: Run) -> None:
    ran = run("translate", "--model", "dates", DATE, "12 May 1987")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "2021-03-03\n1987-05-12\n", "")


def test_json_is_one_object_with_four_keys(run: Run) -> None:
    ran = run("translate", "--model", "dates", DATE, "--json")
    row = json.loads(ran.stdout)
    assert list(row) == ["model", "outputs", "usage", "timing"]
    assert row["outputs"] == ["2021-03-03"]
    assert row["usage"]["output_tokens"] > 0
    assert row["timing"]["total_seconds"] > 0


def test_texts_from_standard_input(run: Run) -> None:
    ran = run("translate", "--model", "dates", "-", stdin=f"{DATE}\n\n12 May 1987\n")
    assert ran.stdout == "2021-03-03\n\n1987-05-12\n"


def test_a_file_of_more_texts_than_one_request_may_have(run: Run) -> None:
    lines = [f"{1 + day % 28} May 1987" if day % 10 else "" for day in range(5000)]
    ran = run("translate", "--model", "dates", stdin="\n".join(lines))
    expected = [f"1987-05-{1 + day % 28:02}" if day % 10 else "" for day in range(5000)]
    assert (ran.returncode, ran.stdout.splitlines()) == (0, expected)


def test_json_of_a_file_has_an_object_for_each_request(run: Run) -> None:
    ran = run("tokenize", "--model", "dates", "--json", stdin="\n".join(["12 May", ""] * 40))
    counts = [len(json.loads(line)["outputs"]) for line in ran.stdout.splitlines()]
    assert counts == [32, 8]


@pytest.mark.parametrize("raw", [["--raw"], []])
def test_generated_lines(run: Run, raw: list[str]) -> None:
    command = ["generate", "--model", "tiny-decoder", *raw]
    ran = run(*command, stdin="7,\n\n98,\n" * 20)
    assert ran.stdout == "8,9,10,11.\n99,100,101,102.\n" * 20


def test_an_error_says_how_many_results_are_before_it(run: Run) -> None:
    texts = ["12 May 1987"] * 70 + ["1" * (1 << 20)]
    ran = run("translate", "--model", "dates", stdin="\n".join(texts))
    assert ran.returncode == 1
    assert ran.stdout.splitlines() == ["1987-05-12"] * 64
    assert ran.stderr.startswith("error: INVALID_ARGUMENT: after 64 results: inputs[6]: ")
    assert ran.stderr.count("\n") == 1


def test_flags_mirror_the_requests_fields(run: Run) -> None:
    flags = ["--max-new-tokens", "3", "--ignore-eos", "--token-ids", "--json"]
    row = json.loads(run("generate", "--model", "tiny-decoder", *flags, "7,").stdout)
    assert [len(ids) for ids in row["token_ids"]] == [3]
    assert row["usage"]["output_tokens"] == 3


def test_streamed_text_is_the_text_of_json(run: Run) -> None:
    command = ["generate", "--model", "tiny-decoder", "7,", "98,"]
    streamed = run(*command).stdout
    assert streamed == "8,9,10,11.\n99,100,101,102.\n"
    assert streamed.splitlines() == json.loads(run(*command, "--json").stdout)["outputs"]


def test_json_of_classify_and_tokenize_has_objects(run: Run) -> None:
    classified = json.loads(run("classify", "--model", "tiny-classifier", "12", "--json").stdout)
    labels = classified["outputs"][0]["labels"]
    assert sum(row["score"] for row in labels) == pytest.approx(1.0, abs=1e-5)
    tokenized = json.loads(run("tokenize", "--model", "dates", DATE, "--json").stdout)
    assert tokenized["outputs"][0].keys() == {"token_ids", "tokens"}


def test_models(run: Run) -> None:
    row = json.loads(run("models", "--json").stdout)
    assert list(row) == ["models"]
    found = {model["name"]: model for model in row["models"]}
    assert found["dates"]["tasks"] == ["translate"]
    assert found["dates"]["quality"] == []
    for graph, num_attention in (("encode", 2), ("decode", 4)):
        (nodes,) = [each for each in found["dates"]["kernel_nodes"] if each["graph"] == graph]
        counts = Counter(nodes["num_native"]) + Counter(nodes["num_standard"])
        assert counts["attention"] == num_attention  # the standard ones without kernels
    assert "dates" in run("models").stdout


def test_health(run: Run) -> None:
    ran = run("health")
    assert (ran.returncode, ran.stdout) == (0, "SERVING\n")


@pytest.mark.parametrize("option", ["--token-file", "--tls-ca"])
def test_a_file_that_cannot_be_read_is_an_error_of_one_line(
    run: Run, tmp_path: Path, option: str
) -> None:
    ran = run(option, str(tmp_path), "models")
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: ")
    assert ran.stderr.count("\n") == 1


def test_an_error_is_one_line_and_exit_code_1(run: Run) -> None:
    ran = run("generate", "--model", "no-such-model", "text")
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: NOT_FOUND")
    assert ran.stderr.count("\n") == 1


def test_a_bad_field_is_named(run: Run) -> None:
    ran = run("generate", "--model", "tiny-decoder", "--temperature", "nan", "7,")
    assert ran.returncode == 1
    assert "sampling.temperature" in ran.stderr


def test_no_server_is_an_error(run: Run) -> None:
    ran = run("--target", "127.0.0.1:1", "health")
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: UNAVAILABLE")


@pytest.mark.parametrize(
    "arguments",
    [
        ["classify", "text"],
        ["classify", "--model", "m", "text", "--pair", "b", "--image", "docs/seven.png"],
        ["classify", "--model", "m", "text", "--image", "docs/seven.png", "--image", "README.md"],
        ["classify", "--model", "m", "text", "--audio", "docs/seven.png"],
        ["classify", "--model", "m", "--image", "docs/seven.png", "--audio", "docs/seven.png"],
        ["embed", "text", "--image", "docs/seven.png"],
        ["translate", "--max-new-tokens", "many", "text"],
        ["translate", "--model", "dates"],
        ["no-such-command"],
        ["generate", "--model", "tiny-decoder", "--raw", "--system", "Be brief.", "7,"],
        ["generate", "--model", "tiny-decoder", "--image", "docs/seven.png", "7,"],
        ["generate", "--model", "tiny-decoder", "--image", "docs/seven.png", "--raw", "7,"],
    ],
)
def test_usage_errors_have_exit_code_2(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.returncode == 2
    assert "Usage" in ran.stderr
