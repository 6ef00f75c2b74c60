"""Heat maps of attention weights, from known matrices and from a real server."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from client import heat_map, types
from client.compare import parse_decoding
from client.types import Alignment
from client.word_alignment import WordAlignment, align_words
from tests.client.test_command_line import DATE, Run, run  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow  # exports, or starts servers

ATTENTION = types.Attention(
    source_tokens=("▁a", "b\n", "\x1b"),
    target_tokens=("x", "$y$"),
    matrices=(types.AttentionMatrix(layer=1, head=0, weights=((0.0, 0.5, 0.5), (1.0, 0.0, 0.0))),),
    alignments=(),
)


def _drawn(width: int) -> list[str]:
    out = io.StringIO()
    heat_map.write_heat_maps(ATTENTION, Console(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_shades_follow_the_weights() -> None:
    assert _drawn(80) == [
        "layer 1, head 0",
        "    0 1 2",
        "x     ▒▒▒▒",
        "$y$ ██",
        "darkest: 1.000",
        "0:·a  1:b⏎  2:\\x1b",
    ]


def test_columns_wrap() -> None:
    assert _drawn(8)[1:7] == ["    0 1", "x     ▒▒", "$y$ ██", "    2", "x   ▒▒", "$y$"]


@pytest.mark.parametrize("name", ["map.png", "map.SVG"])
def test_images(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    heat_map.save_heat_maps(ATTENTION, path)
    if path.suffix == ".png":
        with Image.open(path) as image:
            assert len(set(image.convert("RGB").get_flattened_data())) > 3
    else:
        assert "</svg>" in path.read_text()


def test_bad_paths(tmp_path: Path) -> None:
    for path in (tmp_path / "map.gif", tmp_path / "none" / "map.png"):
        with pytest.raises(ValueError, match="--out"):
            heat_map.check_image_path(path)


def test_missing_matplotlib_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install '\.\[plot\]'"):
        heat_map.check_image_path(tmp_path / "map.png")


@pytest.mark.parametrize("text", ["best", "beam=0", "top-k=x", "nucleus=1.5", "greedy=1"])
def test_bad_decodings(text: str) -> None:
    with pytest.raises(ValueError, match="decoding"):
        parse_decoding(text)


def test_attention_command(run: Run, tmp_path: Path) -> None:  # noqa: F811
    drawn = run("attention", "--model", "dates", DATE)
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert drawn.stdout.startswith("2021-03-03\nmean over layers and heads\n")
    path = tmp_path / "map.svg"
    flags = ("--kind", "self", "--layer", "0", "--out", str(path), "--json")
    found = json.loads(run("attention", "--model", "dates", *flags, DATE).stdout)
    (matrix,) = {each["layer"] for each in found["attention"][0]["matrices"]}
    assert matrix == 0
    assert "</svg>" in path.read_text()
    for row in found["attention"][0]["matrices"][0]["weights"]:
        assert sum(row) == pytest.approx(1.0, abs=1e-4)


def test_attention_command_draws_encoders(run: Run, tmp_path: Path) -> None:  # noqa: F811
    model = ("attention", "--model", "tiny-classifier")
    drawn = run(*model, "--layer", "1", "--head", "2", "1a2b3")
    assert (drawn.returncode, drawn.stderr) == (0, "")
    assert drawn.stdout.startswith("1a2b3\nlayer 1, head 2\n")
    for token in "1a2b3":
        assert f"\n{token} " in drawn.stdout
    path = tmp_path / "map.png"
    found = json.loads(run(*model, "--out", str(path), "--json", "1a2b3").stdout)
    (attention,) = found["attention"]
    assert found["outputs"] == ["1a2b3"]
    assert attention["source_tokens"] == attention["target_tokens"]
    for row in attention["matrices"][0]["weights"]:
        assert sum(row) == pytest.approx(1.0, abs=1e-4)
    with Image.open(path) as image:
        assert len(set(image.convert("RGB").get_flattened_data())) > 3
    pair = json.loads(run(*model, "--pair", "abc", "--json", "12").stdout)
    assert pair["outputs"] == ["12 | abc"]


def test_attention_command_draws_the_encoder_of_an_encoder_decoder(run: Run) -> None:  # noqa: F811
    flags = ("--model", "dates", "--kind", "encoder", "--json")
    found = json.loads(run("attention", *flags, DATE).stdout)
    (attention,) = found["attention"]
    assert attention["source_tokens"] == attention["target_tokens"]
    assert found["outputs"] == ["2021-03-03"]


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "tiny-classifier", "--kind", "self"),
        ("--model", "tiny-classifier", "--pair", "a", "--pair", "b"),
        ("--model", "dates", "--pair", "a"),
    ],
)
def test_bad_flags_of_the_attention_command(run: Run, flags: tuple[str, ...]) -> None:  # noqa: F811
    refused = run("attention", *flags, "12")
    assert refused.returncode == 2
    assert flags[2] in refused.stderr


def test_compare_command(run: Run) -> None:  # noqa: F811
    flags = ["--model", "dates", "--model", "tiny-decoder"]
    flags += [f"--decoding={name}" for name in ("greedy", "beam", "top-k=1", "nucleus")]
    rows = json.loads(run("compare", *flags, "--json", DATE).stdout)["comparisons"]
    assert [(row["model"], row["decoding"]) for row in rows] == [
        (model, decoding)
        for model in ("dates", "tiny-decoder")
        for decoding in ("greedy", "beam=4", "top-k=1", "nucleus=0.9")
    ]
    by_name = {(row["model"], row["decoding"]): row for row in rows}
    greedy, beam = by_name["dates", "greedy"], by_name["dates", "beam=4"]
    assert greedy["output"] == "2021-03-03" == by_name["dates", "top-k=1"]["output"]
    assert beam["score"] >= greedy["score"] - 1e-4
    assert all(row["score"] < 0 < row["tokens_per_second"] for row in rows)
    assert all(row["model_seconds_per_token"] > 0 for row in rows)
    assert all(row["model_seconds_per_token"] < 1 / row["tokens_per_second"] for row in rows)
    # The date is one word of the output; tiny-decoder has no cross-attention.
    for row in rows:
        aligned = {target for each in row["alignment"] for target in each["targets"]}
        assert aligned == ({row["output"]} if row["model"] == "dates" else set())
        assert {each["source"] for each in row["alignment"]} <= set(DATE.split())
    table = run("compare", *flags, DATE)
    assert (table.returncode, table.stderr) == (0, "")
    assert "2021-03-03" in table.stdout
    assert "alignment" in table.stdout
    flags = ["--model", "dates", "--no-alignment", "--json"]
    assert json.loads(run("compare", *flags, DATE).stdout)["comparisons"][0]["alignment"] == []


def test_words_are_aligned_by_their_tokens() -> None:
    """ "The red house" to "la casa rossa": of two tokens, "rossa" attends to "red" twice."""
    spans = [(0, 3, 0, 2), (8, 13, 3, 7), (4, 7, 8, 10), (4, 7, 10, 13), (7, 13, 7, 8)]
    aligned = align_words("The red house", "la casa rossa", [Alignment(*span) for span in spans])
    assert aligned == (
        WordAlignment("The", ("la",)),
        WordAlignment("red", ("rossa",)),
        WordAlignment("house", ("casa",)),
    )
    assert not align_words("a", " ", [Alignment(0, 1, 0, 1)])
    assert not align_words("a", "b", [])
