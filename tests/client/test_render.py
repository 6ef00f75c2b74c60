"""What the command line prints."""

import dataclasses
import io
import json
from collections.abc import Iterator

import pytest
import typer

from client import encoder_types, flags, render, render_embeddings, responses, types
from protos.triune.v1 import models_pb2

USAGE = types.Usage(input_tokens=3, output_tokens=2, reused_tokens=1)
TIMING = types.Timing(
    queue_seconds=0.1,
    tokenize_seconds=0.2,
    prefill_seconds=0.3,
    decode_seconds=0.4,
    total_seconds=1.0,
)


def _piece(index: int, text: str, *token_ids: int, last: bool = False) -> types.Piece:
    return types.Piece(
        model="m",
        index=index,
        text=text,
        token_ids=token_ids,
        finish_reason=types.FinishReason.STOP if last else None,
        usage=USAGE if last else None,
        timing=TIMING if last else None,
    )


def _result(*texts: str) -> types.TextResult:
    return types.TextResult(
        model="m",
        usage=USAGE,
        timing=TIMING,
        outputs=tuple(
            types.Text(
                text=text, token_ids=(7,), finish_reason=types.FinishReason.STOP, usage=USAGE
            )
            for text in texts
        ),
    )


def test_pieces_of_the_first_output_are_written_at_once() -> None:
    out = io.StringIO()
    seen = []

    def pieces() -> Iterator[types.Piece]:
        for text in ("one", " two"):
            yield _piece(0, text)
            seen.append(out.getvalue())

    render.write_pieces(pieces(), out)
    assert seen == ["one", "one two"]


def test_interleaved_outputs_are_written_in_order() -> None:
    out = io.StringIO()
    render.write_pieces(
        [
            _piece(2, "c", last=True),
            _piece(1, "b1 "),
            _piece(0, "a1 "),
            _piece(1, "b2", last=True),
            _piece(0, "a2", last=True),
        ],
        out,
    )
    assert out.getvalue() == "a1 a2\nb1 b2\nc\n"


def test_token_ids_follow_their_output() -> None:
    out = io.StringIO()
    render.write_pieces([_piece(0, "a", 5), _piece(0, "b", 6, last=True)], out)
    assert out.getvalue() == "ab\n[5, 6]\n"


def test_json_of_several_requests_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    render.write_texts_json([_result("olá"), _result("x", "y")], {})
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "olá" in printed
    row = json.loads(printed)
    assert list(row) == ["model", "outputs", "usage", "timing"]
    assert row["outputs"] == ["olá", "x", "y"]
    assert row["usage"] == {
        "input_tokens": 6,
        "output_tokens": 4,
        "reused_tokens": 2,
        "reasoning_tokens": 0,
    }
    assert row["timing"]["total_seconds"] == 2.0


def test_json_has_token_ids_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    render.write_texts_json([_result("x", "y")], types.GenerationOptions(token_ids=True))
    assert json.loads(capsys.readouterr().out)["token_ids"] == [[7], [7]]


def test_cosines_are_of_unit_vectors(capsys: pytest.CaptureFixture[str]) -> None:
    vectors = [(2.0, 0.0), (0.0, 3.0), (1.0, 1.0)]
    reading = encoder_types.Reading(truncated_tokens=0, windows=1)
    result = encoder_types.EmbedResult(
        model="m",
        usage=USAGE,
        timing=TIMING,
        outputs=tuple(
            encoder_types.Embedding(values=vector, usage=USAGE, reading=reading)
            for vector in vectors
        ),
    )
    render_embeddings.write_embeddings(result, ["a", "b", "c"])
    printed = capsys.readouterr().out
    assert "3 vectors of 2 dimensions" in printed
    assert "0.707" in printed
    assert "4.000" not in printed
    one = dataclasses.replace(result, outputs=result.outputs[:1])
    render_embeddings.write_embeddings(one, ["a"])
    assert "m: 1 vector of 2 dimensions, 3 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (None, ["one", "two"]),
        (["-"], ["one", "two"]),
        (["a", "-", "b"], ["a", "one", "two", "b"]),
    ],
)
def test_texts_come_from_arguments_and_lines(
    arguments: list[str] | None, expected: list[str]
) -> None:
    assert flags.read_texts(arguments, ["one\r\n", "\n", "  \n", "two"]) == expected


@pytest.mark.parametrize(
    ("arguments", "lines", "expected"),
    [
        (None, ["\n", "one\r\n", " \n"], ["one"]),
        (["-"], ["one\n"], ["one"]),
        (["-", "a"], ["one\n"], []),
        (None, ["one\n", "\n", "two\n", "three\n"], []),
        (None, [], []),
    ],
)
def test_a_single_line_is_found(
    arguments: list[str] | None, lines: list[str], expected: list[str]
) -> None:
    only, rest = flags.only_line(arguments, iter(lines))
    assert only == expected
    assert list(rest) == [line for line in lines if line.strip()]


@pytest.mark.parametrize(
    ("texts", "pairs", "message"),
    [
        (["a"], ["b", "c"], "--pair is given 2 times for 1 text"),
        (["a", "b"], ["c"], "--pair is given 1 time for 2 texts"),
    ],
)
def test_each_text_needs_its_pair(texts: list[str], pairs: list[str], message: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        flags.read_seconds(texts, pairs, None)
    assert str(caught.value) == message


def test_no_text_is_a_usage_error() -> None:
    with pytest.raises(typer.BadParameter, match="no text"):
        flags.read_texts(None, ["\n"])


def test_names_of_models_are_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    message = models_pb2.Model(
        name="debian-summaries",
        version="1",
        kind=models_pb2.MODEL_KIND_ENCODER_DECODER,
        architecture="transformer",
        precision="int8",
        parameters=134_515_008,
        tasks=["embed", "rerank", "transcribe"],
        embedding=models_pb2.EmbeddingInfo(kind="multi_vector"),
        memory=models_pb2.MemoryInfo(
            weight_bytes=99_500_000, cache_bytes=6_040_000_000, cache_resident_bytes=1_000_000
        ),
    )
    render.write_models([responses.model(models_pb2.GetModelResponse(model=message))])
    printed = capsys.readouterr().out
    *table, details = printed.splitlines()
    assert all(len(line) <= 80 for line in table)
    assert "…" not in printed
    words = ["debian-summaries", "(multi_vector),", "transcribe", "int8"]
    assert [word for word in words if word not in printed] == []
    title = "debian-summaries/1 architecture"
    assert details == f"{title}: encoder_decoder, transformer, 134,515,008 parameters"


def test_models_are_listed_with_their_fidelity_and_quality(
    capsys: pytest.CaptureFixture[str],
) -> None:
    message = models_pb2.Model(name="m", version="1", precision="int8")
    message.quality.add(dataset="sections").metrics.update({"accuracy": 0.722, "f1": 0.645})
    message.parity.fidelity.top1_agreement = 0.0  # set, unlike the other figures
    message.parity.fidelity.rms_logprob_difference = 0.1681
    message.parity.fidelity.exceeded_limits.append("top1_agreement is 0.0000, below 0.85")
    model = responses.model(models_pb2.GetModelResponse(model=message))
    assert model.parity is not None
    assert model.parity.fidelity is not None
    assert model.parity.fidelity.kl_divergence is None
    assert len(model.parity.fidelity.exceeded_limits) == 1
    older = responses.model(models_pb2.GetModelResponse(model=models_pb2.Model(name="older")))
    render.write_models([model, older])
    printed = capsys.readouterr().out
    assert "m/1 fidelity to fp32: top-1 0.000, rms 0.168\n" in printed
    assert "m/1 quality: accuracy 0.722, f1 0.645 (sections)\n" in printed
    assert "older/" not in printed


def test_models_are_listed_with_their_native_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    message = models_pb2.Model(name="m", version="3")
    decode = message.kernel_nodes.add(graph="decode")
    decode.num_native.update({"int8_matmul": 13, "attention": 2})
    decode.num_standard.update({"attention": 3, "norm": 7})
    message.kernel_nodes.add(graph="encode").num_native.update({"int8_matmul": 14})
    model = responses.model(models_pb2.GetModelResponse(model=message))
    assert model.kernel_nodes[1].num_native == {"int8_matmul": 14}
    older = responses.model(models_pb2.GetModelResponse(model=models_pb2.Model(name="older")))
    assert older.kernel_nodes == ()
    render.write_models([model, older])
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "m/3 native nodes: attention 2 of 5, int8_matmul 27, norm 0 of 7"
    render.write_models_json([model])
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["kernel_nodes"][0] == {
        "graph": "decode",
        "num_native": {"attention": 2, "int8_matmul": 13},
        "num_standard": {"attention": 3, "norm": 7},
    }


def test_scored_texts_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = (types.Scored(score=-2.0, num_tokens=2, logprobs=(), usage=USAGE),) * 2
    result = types.ScoreResult(model="m", outputs=outputs, usage=USAGE, timing=TIMING)
    render.write_scores(result, ["[/b] x", "[bold]hi[/bold]"])
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[2].rstrip() for row in rows] == ["[/b] x", "[bold]hi[/bold]"]
